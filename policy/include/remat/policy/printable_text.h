// SPDX-License-Identifier: BSD-3-Clause

// Text for errors, of bytes that may be no text.
#pragma once

#include <string>

namespace remat::detail {

/// With '?' for what is no printable character of ASCII.
inline std::string as_printable(std::string text) {
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

}  // namespace remat::detail
