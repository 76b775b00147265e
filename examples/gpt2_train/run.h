// SPDX-License-Identifier: BSD-3-Clause

// Trains the modes side by side.
#pragma once

#include "options.h"
#include "report.h"

namespace gpt2_train {

/// Trains every mode on the same batches, in turns, and compares each with plain after every step.
/// Writes progress to standard error. Throws std::invalid_argument if the text is unusable.
Report run(const Options& options);

}  // namespace gpt2_train
