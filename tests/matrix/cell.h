// SPDX-License-Identifier: BSD-3-Clause

// One cell of a matrix: a model in a layout of regions and a use.
#pragma once

#include <functional>
#include <string>

#include "matrix/models.h"
#include "matrix/outcome.h"
#include "matrix/structures.h"
#include "matrix/uses.h"

namespace remat::matrix {

/// Result of Outcome::differences() for equal outcomes.
inline const std::string kNothing;

/// Calls blocks directly, without a region.
Wrap plain(const Model& model);

/// Runs the cell on a new model, and calls its blocks through `wrap`.
Outcome run_cell(const NamedModel& model, const Structure& structure, const Use& use,
                 const std::function<Wrap(const Model&)>& wrap);

/// Checks that two plain runs are equal and raise exactly the listed error, and reports that error.
void check_plain(const NamedModel& model, const Structure& structure, const Use& use,
                 const Outcome& expected, const Outcome& again);

}  // namespace remat::matrix
