// SPDX-License-Identifier: BSD-3-Clause

// A progress line on standard error.
#pragma once

#include <cstdint>
#include <string>

namespace gpt2_train {

/// On a terminal the line is rewritten at every step; elsewhere about ten lines are printed.
class Progress {
 public:
  explicit Progress(int64_t steps);

  /// Call after step `step` of 0 .. steps - 1.
  void show(int64_t step, const std::string& text) const;

 private:
  int64_t steps_;
  bool terminal_;
};

}  // namespace gpt2_train
