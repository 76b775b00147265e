// SPDX-License-Identifier: BSD-3-Clause

// Numbers as text, and files.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace remat_plan {

/// Formats like std::printf; at most 511 characters.
template <typename... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

/// A text such as "12.50 %"; "-" for infinity and NaN.
std::string percent(double fraction);

/// A text such as "792.3 MiB".
std::string in_words(int64_t bytes);

/// "-" is standard input.
/// @throws std::runtime_error
std::string read_text(const std::string& path);

/// @throws std::runtime_error
void write_text(const std::string& path, const std::string& text);

}  // namespace remat_plan
