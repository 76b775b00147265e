// SPDX-License-Identifier: BSD-3-Clause

// The cost of each mode and its agreement with plain, as text.
#pragma once

#include "trainer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2_train {

/// Shows the last step on standard error: on a terminal the line is rewritten at every step;
/// elsewhere about ten lines are printed. Plain is the first of `trainers`.
void show_progress(const std::vector<Trainer>& trainers, int64_t steps);

/// The faults of the run, one sentence each; empty if every loss fell and every gradient is equal.
std::vector<std::string> faults(const std::vector<Trainer>& trainers);

/// A row for each mode, and a legend. `depth`: number of blocks.
std::string to_table(const std::vector<Trainer>& trainers, int64_t depth);

}  // namespace gpt2_train
