// SPDX-License-Identifier: BSD-3-Clause

// Text of recordings on a terminal.
#pragma once

#include <string>

namespace remat {

/// What would end the line, or move a terminal's cursor, is a question mark.
inline std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace remat
