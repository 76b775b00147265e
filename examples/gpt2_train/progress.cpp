// SPDX-License-Identifier: BSD-3-Clause

// Writes the progress line.
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace gpt2_train {

namespace {

constexpr int64_t kLinesWithoutTerminal = 10;
constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::show(int64_t step, const std::string& text) const {
  const bool last = step + 1 == steps_;
  const int64_t every = std::max<int64_t>(1, steps_ / kLinesWithoutTerminal);
  if (!terminal_ && !last && step % every != 0) {
    return;
  }
  const std::string line = fmt::format("step {}/{}  {}", step + 1, steps_, text);
  std::fputs((terminal_ ? kEraseLine + line + (last ? "\n" : "") : line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace gpt2_train
