// SPDX-License-Identifier: BSD-3-Clause

// Encodes events as bytes, and writes a recording file from the buffers of several threads. See
// docs/reference/recording-files.md.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/event_fields.h>
#include <remat/recording/events.h>

namespace remat::detail {

/// Writes numbers in bytes of seven bits, the lowest first; the eighth bit says that more bytes
/// follow. Signed numbers have their sign in the lowest bit.
class ByteWriter {
 public:
  /// Appends the event. A time is stored as the difference to the previous time in the block.
  template <class Event>
  void add(const Event& event) {
    make_room(kMostOfFields);
    byte(static_cast<char>(kind_of<Event>()));
    visit_fields(event, *this);
  }

  void add_string(std::string_view text) {
    make_room(kMostOfFields + text.size());
    byte(static_cast<char>(kStringKind));
    number(text.size());
    text.copy(bytes_.data() + size_, text.size());
    size_ += text.size();
  }

  /// Valid until the next call of another member.
  std::string_view bytes() const { return {bytes_.data(), size_}; }

  /// Empties the buffer, for the next block.
  void clear() {
    size_ = 0;
    last_ns_ = 0;
  }

  void time(TimeNs time_ns) {
    signed_number(time_ns - last_ns_);
    last_ns_ = time_ns;
  }
  void number(uint64_t value) {
    char* at = bytes_.data() + size_;
    for (; value >= 0x80; value >>= 7U) *at++ = static_cast<char>(value | 0x80);
    *at++ = static_cast<char>(value);
    size_ = static_cast<size_t>(at - bytes_.data());
  }
  void signed_number(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    number((bits << 1U) ^ (value < 0 ? ~uint64_t{0} : 0));
  }
  void string(uint64_t id) { number(id); }
  void layout(LayoutId id) { number(id); }
  void flag(bool value) { byte(value ? 1 : 0); }
  template <class Choice>
  void choice(Choice value, Choice /*last*/) {
    number(static_cast<uint64_t>(value));
  }
  void expect(bool /*is_valid*/, const char* /*fault*/) {}
  void sizes(const std::vector<int64_t>& sizes) {
    make_room(kMostOfFields + sizes.size() * kMostOfNumber);
    number(sizes.size());
    for (const int64_t size : sizes) signed_number(size);
  }
  template <class Item>
  void all(const std::vector<Item>& items) {
    make_room(kMostOfFields + items.size() * kMostOfItem);
    number(items.size());
    for (const Item& item : items) visit_fields(item, *this);
  }

 private:
  static constexpr size_t kMostOfNumber = 10;               ///< most bytes of a number
  static constexpr size_t kMostOfItem = 4 * kMostOfNumber;  ///< most bytes of one list item
  /// most bytes of an event without its lists
  static constexpr size_t kMostOfFields = 40 * kMostOfNumber;

  /// Makes room for `bytes` and for the fields that follow a list.
  void make_room(size_t bytes) {
    const size_t wanted = size_ + bytes + kMostOfFields;
    if (wanted > bytes_.size()) bytes_.resize(std::max(wanted, 2 * bytes_.size()));
  }
  void byte(char value) { bytes_[size_++] = value; }

  std::string bytes_;  // never shrinks; the first size_ bytes are written
  size_t size_ = 0;
  TimeNs last_ns_ = 0;
};

}  // namespace remat::detail

namespace remat {

/// Thread-safe. After a fork, only the process that constructed the writer writes.
class REMAT_API RecordingWriter {
 public:
  /// Creates or truncates the file. @throws std::invalid_argument if it cannot be opened.
  explicit RecordingWriter(const std::string& path);
  ~RecordingWriter();

  /// The id of `text`; equal texts have equal ids. Takes a lock, so cache frequent ids.
  StringId string(std::string_view text);
  LayoutId layout(const RecordedLayout& layout);

  /// Appends events that a ByteWriter encoded, after any definitions that they need.
  void write_block(uint32_t thread, std::string_view events);

  /// Error text of the first failed write; empty if none failed. Nothing is written after a
  /// failure.
  std::string fault() const;

 private:
  void append(uint32_t thread, std::string_view events);
  void write_all(std::string_view bytes);

  const std::string path_;
  const pid_t owner_;
  int file_ = -1;
  mutable std::mutex mutex_;
  // The members below are guarded by mutex_.
  std::unordered_map<std::string, StringId> strings_{{"", 0}};
  std::map<RecordedLayout, LayoutId> layouts_;
  detail::ByteWriter definitions_;  // strings and layouts that are not in the file yet
  std::string fault_;
};

}  // namespace remat
