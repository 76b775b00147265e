// SPDX-License-Identifier: BSD-3-Clause

// The cells of the matrix where plain LibTorch raises, so that checkpoint has to raise the same.
#pragma once

#include <string>

#include "matrix/models.h"
#include "matrix/structures.h"
#include "matrix/uses.h"

namespace remat::matrix {

/// A part of the error that this cell raises in plain LibTorch, empty if it raises none.
std::string expected_error(const NamedModel& model, const Structure& structure, const Use& use);

/// Has the cell listed on standard output when the program ends.
void report_raising_cell(const std::string& cell, const std::string& error);

}  // namespace remat::matrix
