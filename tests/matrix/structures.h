// SPDX-License-Identifier: BSD-3-Clause

// Layouts of regions around a model's block, and kinds of inputs.
#pragma once

#include <string>
#include <vector>

#include "matrix/models.h"

namespace remat::matrix {

enum class InputKind { kGrad, kNoGrad, kInference };

struct Structure {
  std::string name;
  InputKind input_kind;
  /// Runs the block on the inputs in this layout. Returns all outputs of all blocks, those of the
  /// last block first.
  Tensors (*run)(const Wrap&, const Block&, const Tensors& inputs);
};

const std::vector<Structure>& structures();

}  // namespace remat::matrix
