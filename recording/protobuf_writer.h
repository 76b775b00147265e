// SPDX-License-Identifier: BSD-3-Clause

// The wire format of protobuf, as much of it as a trace needs. libprotobuf and its compiler would
// be a dependency for these few lines. https://protobuf.dev/programming-guides/encoding
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace remat::detail {

/// One message. Fields stand in the order in which they are added.
class ProtobufWriter {
 public:
  /// Of types uint32, uint64, bool and enums.
  void number(uint32_t field, uint64_t value) {
    key(field, kVarint);
    varint(value);
  }
  /// Of types int32 and int64.
  void signed_number(uint32_t field, int64_t value) { number(field, static_cast<uint64_t>(value)); }

  void fixed64(uint32_t field, uint64_t value) {
    key(field, kFixed64);
    for (int byte = 0; byte < 8; ++byte) bytes_.push_back(static_cast<char>(value >> (8 * byte)));
  }

  /// Of types string (then it is UTF-8), bytes, and messages.
  void text(uint32_t field, std::string_view value) {
    key(field, kSized);
    varint(value.size());
    bytes_.append(value);
  }
  void message(uint32_t field, const ProtobufWriter& value) { text(field, value.bytes()); }

  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  static constexpr uint32_t kVarint = 0;
  static constexpr uint32_t kFixed64 = 1;
  static constexpr uint32_t kSized = 2;

  void key(uint32_t field, uint32_t wire_type) { varint(field << 3U | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

}  // namespace remat::detail
