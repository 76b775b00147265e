// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/folded_label.h>

#include <string_view>

namespace remat::detail {

std::string folded_label(const std::string& label) {
  constexpr std::string_view kDigits = "0123456789";
  std::string folded;
  bool in_number = false;
  for (const char c : label) {
    const bool is_digit = kDigits.find(c) != std::string_view::npos;
    if (!is_digit) {
      folded += c;
    } else if (!in_number) {
      folded += '*';
    }
    in_number = is_digit;
  }
  return folded;
}

}  // namespace remat::detail
