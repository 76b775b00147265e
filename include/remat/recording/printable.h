// SPDX-License-Identifier: BSD-3-Clause

// Text of recordings, made safe for a terminal.
#pragma once

#include <string>

namespace remat {

/// Replaces control characters, which could end the line or move a terminal's cursor, by question
/// marks.
inline std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace remat
