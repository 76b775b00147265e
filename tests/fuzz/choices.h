// SPDX-License-Identifier: BSD-3-Clause

// Random choices for random programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>

#include "fuzz/program.h"

namespace remat::fuzz {

class Choices {
 public:
  explicit Choices(uint64_t seed) : random_(seed) {}

  /// Returns a number below `count`.
  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  bool one_in(size_t count) { return pick(count) == 0; }

  /// Prefers recent values, so that programs are deep rather than wide.
  size_t pick_late(size_t count) {
    return pick(3) ? count - 1 - pick(std::min<size_t>(count, 2)) : pick(count);
  }

  Op op() { return static_cast<Op>(pick(static_cast<size_t>(Op::kOpCount))); }
  Op device_op() {
    const auto first = static_cast<size_t>(Op::kOpCount);
    return static_cast<Op>(first + pick(static_cast<size_t>(Op::kAllOpCount) - first));
  }
  Use use() { return static_cast<Use>(pick(static_cast<size_t>(Use::kCount))); }

  Freed freed(Use use);

  /// Chooses a region's options, but not its arguments.
  RegionChoices region();

  /// Chooses a call's options, but not its name, arguments and captures.
  CallChoices call(bool may_recompute);

  ScopeChoices scope();

 private:
  std::vector<OpRule> rules();

  std::mt19937_64 random_;
};

}  // namespace remat::fuzz
