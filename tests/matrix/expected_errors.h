// SPDX-License-Identifier: BSD-3-Clause

// The cells where plain LibTorch raises, so that checkpoint must raise the same error, and the
// cells where only checkpoint raises.
#pragma once

#include <string>

#include "matrix/models.h"
#include "matrix/patterns.h"
#include "matrix/structures.h"
#include "matrix/uses.h"

namespace remat::matrix {

/// Returns a part of the error that this cell raises in plain LibTorch; empty if it raises none.
std::string expected_error(const NamedModel& model, const Structure& structure, const Use& use);

/// Returns a part of the error that regions raise in this use although plain LibTorch raises none:
/// a backward inside a region cannot pass calls that a replay leaves out. Empty if they raise none.
std::string expected_refusal(const Pattern& pattern, const Use& use);

/// Lists the cell on standard output when the program ends.
void report_raising_cell(const std::string& cell, const std::string& error);

}  // namespace remat::matrix
