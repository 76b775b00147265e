// SPDX-License-Identifier: BSD-3-Clause

// Error text made from bytes that may not be text.
#pragma once

#include <string>

namespace remat::detail {

/// Replaces all but printable ASCII characters by '?'.
inline std::string as_printable(std::string text) {
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

}  // namespace remat::detail
