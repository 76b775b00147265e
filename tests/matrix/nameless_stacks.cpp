// SPDX-License-Identifier: BSD-3-Clause

// Makes anomaly mode affordable: it looks up the names of a whole stack, 15 ms, for every op of a
// forward.

#include <execinfo.h>

#include <cstdlib>

/// In place of the C library's, for LibTorch too, since the program's symbols come first.
extern "C" char** backtrace_symbols(void* const* /*addresses*/, int size) noexcept {
  static char unnamed[] = "?";
  auto* const names = static_cast<char**>(std::malloc(sizeof(char*) * static_cast<size_t>(size)));
  for (int i = 0; names && i < size; ++i) names[i] = unnamed;
  return names;
}
