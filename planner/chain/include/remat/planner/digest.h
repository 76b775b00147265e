// SPDX-License-Identifier: BSD-3-Clause

// Hashes that distinguish profiles and steps.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace remat::detail {

/// Returns 16 hex digits, because not all JSON readers keep 64-bit numbers exactly.
inline std::string hex_text(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// FNV-1a over numbers, and over strings with their lengths.
class Digest {
 public:
  void add(int64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    for (const char c : text) byte(static_cast<uint8_t>(c));
  }
  void add(const std::vector<std::string>& texts) {
    add(static_cast<int64_t>(texts.size()));
    for (const std::string& text : texts) add(text);
  }
  uint64_t hash() const { return hash_; }
  std::string hex() const { return hex_text(hash_); }

 private:
  void byte(uint8_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }

  uint64_t hash_ = 14695981039346656037U;
};

}  // namespace remat::detail
