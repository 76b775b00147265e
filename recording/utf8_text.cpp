// SPDX-License-Identifier: BSD-3-Clause

#include "utf8_text.h"

#include <cstddef>
#include <cstdint>

namespace remat::detail {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length in bytes of the character that begins with `first`; 0 if no character does.
size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

/// Length in bytes of the character at the start of `text`; 0 if it is invalid.
size_t first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = length_of(byte(0));
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) >= 0xC0) return 0;
  }
  // An overlong encoding, half of a UTF-16 pair, or a value past the last character.
  if (length == 3 && byte(0) == 0xE0 && byte(1) < 0xA0) return 0;
  if (length == 3 && byte(0) == 0xED && byte(1) >= 0xA0) return 0;
  if (length == 4 && byte(0) == 0xF0 && byte(1) < 0x90) return 0;
  if (length == 4 && byte(0) == 0xF4 && byte(1) >= 0x90) return 0;
  return length;
}

}  // namespace

std::string utf8_of(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = first_character(text);
    valid += length > 0 ? text.substr(0, length) : kReplacement;
    text.remove_prefix(length > 0 ? length : 1);
  }
  return valid;
}

}  // namespace remat::detail
