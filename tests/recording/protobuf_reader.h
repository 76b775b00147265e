// SPDX-License-Identifier: BSD-3-Clause

// Parses a protobuf message without its definition.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.h"

namespace remat::test {

/// The fields by number, each with its values in order.
class ProtobufMessage {
 public:
  explicit ProtobufMessage(std::string_view bytes) : bytes_(bytes) {
    while (!bytes_.empty()) {
      const uint64_t key = varint();
      const auto field = static_cast<uint32_t>(key >> 3U);
      if ((key & 7U) == 0) {
        numbers_[field].push_back(varint());
      } else if ((key & 7U) == 1) {
        numbers_[field].push_back(fixed64());
      } else {
        REQUIRE((key & 7U) == 2);
        texts_[field].push_back(take(varint()));
      }
    }
  }

  const std::vector<uint64_t>& numbers(uint32_t field) { return numbers_[field]; }
  const std::vector<std::string>& texts(uint32_t field) { return texts_[field]; }

  /// Returns the value of a field that must occur once.
  uint64_t number(uint32_t field) {
    REQUIRE(numbers_[field].size() == 1);
    return numbers_[field][0];
  }
  const std::string& text(uint32_t field) {
    REQUIRE(texts_[field].size() == 1);
    return texts_[field][0];
  }
  bool has(uint32_t field) const { return numbers_.count(field) + texts_.count(field) > 0; }

  std::vector<ProtobufMessage> messages(uint32_t field) {
    std::vector<ProtobufMessage> all;
    for (const std::string& text : texts_[field]) all.emplace_back(text);
    return all;
  }

 private:
  std::string take(uint64_t size) {
    REQUIRE(size <= bytes_.size());
    std::string taken(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  }
  uint64_t fixed64() {
    uint64_t value = 0;
    const std::string bytes = take(8);
    for (size_t i = 8; i > 0; --i) value = value << 8U | static_cast<unsigned char>(bytes[i - 1]);
    return value;
  }

  std::string_view bytes_;  // the bytes still to be read
  std::map<uint32_t, std::vector<uint64_t>> numbers_;
  std::map<uint32_t, std::vector<std::string>> texts_;
};

}  // namespace remat::test
