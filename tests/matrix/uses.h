// SPDX-License-Identifier: BSD-3-Clause

// Ways in which a program uses a model's graph: one backward, several, derivatives of derivatives,
// threads, hooks.
#pragma once

#include <string>
#include <vector>

#include "matrix/models.h"
#include "matrix/outcome.h"
#include "matrix/structures.h"

namespace remat::matrix {

/// A model in a layout, plain or checkpointed by `wrap`.
struct Program {
  Model model;
  Structure structure;
  Wrap wrap;

  Tensors make_inputs() const;

  /// Runs `block`, by default the model's, under the model's settings.
  Tensors forward(const Tensors& inputs) const { return forward(inputs, model.block); }
  Tensors forward(const Tensors& inputs, const Block& block) const;

  /// Returns the parameters, then the inputs that require a gradient.
  Tensors leaves(const Tensors& inputs) const;
};

struct Use {
  std::string name;
  void (*run)(const Program&, Outcome&);
};

const std::vector<Use>& uses();

}  // namespace remat::matrix
