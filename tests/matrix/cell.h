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

/// What Outcome::differences() says of equal ones.
inline const std::string kNothing;

/// Calls blocks as they are.
Wrap plain(const Model& model);

/// Runs the cell on a new model, with blocks called as `wrap` says.
Outcome run_cell(const NamedModel& model, const Structure& structure, const Use& use,
                 const std::function<Wrap(const Model&)>& wrap);

/// Checks that two plain runs are equal and raise what is listed, and reports what they raise.
void check_plain(const NamedModel& model, const Structure& structure, const Use& use,
                 const Outcome& expected, const Outcome& again);

}  // namespace remat::matrix
