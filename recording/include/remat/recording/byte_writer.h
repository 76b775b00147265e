// SPDX-License-Identifier: BSD-3-Clause

// Events to bytes. See docs/recording_format.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <remat/recording/events.h>

#include <remat/recording/event_fields.h>

namespace remat::detail {

/// Seven bits a byte, the lowest first; the eighth says that more follow. Signed numbers have their
/// sign in the lowest bit.
class ByteWriter {
 public:
  /// Appends the event. Of a block, times are told as differences to the one before.
  template <class Event>
  void add(const Event& event) {
    bytes_.push_back(static_cast<char>(FieldsOf<Event>::kKind));
    FieldsOf<Event>::visit(event, *this);
  }

  void add_string(std::string_view text) {
    bytes_.push_back(static_cast<char>(EventKind::kString));
    number(text.size());
    bytes_.append(text);
  }

  const std::string& bytes() const { return bytes_; }

  /// The next block begins.
  void clear() {
    bytes_.clear();
    last_ns_ = 0;
  }

  void time(TimeNs time_ns) {
    signed_number(time_ns - last_ns_);
    last_ns_ = time_ns;
  }
  void number(uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7U;
    }
    bytes_.push_back(static_cast<char>(value));
  }
  void signed_number(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    number((bits << 1U) ^ (value < 0 ? ~uint64_t{0} : 0));
  }
  void flag(bool value) { number(value ? 1 : 0); }
  template <class Choice>
  void choice(Choice value, Choice /*last*/) {
    number(static_cast<uint64_t>(value));
  }
  void sizes(const std::vector<int64_t>& sizes) {
    number(sizes.size());
    for (const int64_t size : sizes) signed_number(size);
  }
  template <class Item>
  void all(const std::vector<Item>& items) {
    number(items.size());
    for (const Item& item : items) ItemFields<Item>::visit(item, *this);
  }

 private:
  std::string bytes_;
  TimeNs last_ns_ = 0;
};

}  // namespace remat::detail
