// SPDX-License-Identifier: BSD-3-Clause

// Decodes events from bytes. See docs/reference/recording-files.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <remat/recording/event_fields.h>
#include <remat/recording/recording.h>

namespace remat::detail {

/// The inverse of ByteWriter. The bytes need not be valid: throws std::runtime_error, also for
/// strings and layouts that `names` does not define, and allocates no more than the bytes can hold.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, const Recording& names) : bytes_(bytes), names_(names) {}

  bool at_end() const { return next_ == bytes_.size(); }
  uint8_t kind() { return byte(); }

  template <class Event>
  Event event() {
    Event read;
    visit_fields(read, *this);
    return read;
  }

  std::string text() {
    const size_t size = count();
    std::string read(bytes_.substr(next_, size));
    next_ += size;
    return read;
  }

  void time(TimeNs& time_ns) {
    int64_t since = 0;
    signed_number(since);
    last_ns_ = static_cast<int64_t>(static_cast<uint64_t>(last_ns_) + static_cast<uint64_t>(since));
    constexpr TimeNs kMaxNs = TimeNs{1} << 60U;
    expect(-kMaxNs <= last_ns_ && last_ns_ <= kMaxNs, "a time of decades");
    time_ns = last_ns_;
  }
  template <class Number>
  void number(Number& value) {
    const uint64_t read = number();
    expect(read <= std::numeric_limits<Number>::max(), "a number that is too large");
    value = static_cast<Number>(read);
  }
  void signed_number(int64_t& value) {
    const uint64_t bits = number();
    value = static_cast<int64_t>((bits >> 1U) ^ ((bits & 1U) != 0 ? ~uint64_t{0} : 0));
  }
  template <class Id>
  void string(Id& id) {
    number(id);
    expect(id < names_.strings.size(), "a name that nothing defines");
  }
  void layout(LayoutId& id) {
    number(id);
    expect(id < names_.layouts.size(), "a layout that nothing defines");
  }
  void expect(bool is_valid, const char* fault) const {
    if (!is_valid) throw std::runtime_error(fault);
  }
  void flag(bool& value) {
    const uint64_t read = number();
    expect(read <= 1, "a flag that is neither 0 nor 1");
    value = read == 1;
  }
  template <class Choice>
  void choice(Choice& value, Choice last) {
    const uint64_t read = number();
    expect(read <= static_cast<uint64_t>(last), "a value that its enumeration does not have");
    value = static_cast<Choice>(read);
  }
  void sizes(std::vector<int64_t>& sizes) {
    sizes.resize(count());
    for (int64_t& size : sizes) signed_number(size);
  }
  template <class Item>
  void all(std::vector<Item>& items) {
    items.resize(count());
    for (Item& item : items) visit_fields(item, *this);
  }

 private:
  /// Reads the count of items that take a byte or more each.
  size_t count() {
    const uint64_t read = number();
    expect(read <= bytes_.size() - next_, "more items than bytes");
    return static_cast<size_t>(read);
  }

  uint64_t number() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint64_t read = byte();
      if (shift == 63 && read > 1) break;
      value |= (read & 0x7fU) << shift;
      if ((read & 0x80U) == 0) return value;
    }
    throw std::runtime_error("a number of more than 64 bits");
  }

  uint8_t byte() {
    expect(!at_end(), "an end in the middle of an event");
    return static_cast<uint8_t>(bytes_[next_++]);
  }

  const std::string_view bytes_;
  const Recording& names_;
  size_t next_ = 0;
  TimeNs last_ns_ = 0;
};

}  // namespace remat::detail
