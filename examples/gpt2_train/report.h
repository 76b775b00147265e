// SPDX-License-Identifier: BSD-3-Clause

// Trains the modes side by side, and shows the cost of each and its agreement with plain.
#pragma once

#include "model.h"
#include "options.h"
#include "trainer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2_train {

/// One row of the table.
struct ModeReport {
  std::string mode;
  std::vector<StepRecord> steps;
  std::string difference;  // first difference from plain; empty if every step is bitwise equal
};

struct Report {
  Options options;
  int64_t parameters = 0;  // number of scalars
  int64_t text_bytes = 0;
  std::vector<ModeReport> rows;  // plain first
};

/// Trains every mode on the same batches, in turns, and compares each with plain after every step.
/// Writes progress to standard error. Throws std::invalid_argument if the text is unusable.
Report run(const Options& options);

/// The faults of the run, one sentence each; empty if every loss fell and every gradient is equal.
std::vector<std::string> faults(const Report& report);

std::string to_table(const Report& report);

}  // namespace gpt2_train
