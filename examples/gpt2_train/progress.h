// SPDX-License-Identifier: BSD-3-Clause

// One line that says how far a run is, on standard error.
#pragma once

#include <cstdint>
#include <string>

namespace gpt2_train {

/// On a terminal the line is rewritten in place at every step; elsewhere there are about ten lines.
class Progress {
 public:
  explicit Progress(int64_t steps);

  /// Step `step` of 0 .. steps - 1 is done.
  void show(int64_t step, const std::string& text) const;

 private:
  int64_t steps_;
  bool terminal_;
};

}  // namespace gpt2_train
