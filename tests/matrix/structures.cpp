// SPDX-License-Identifier: BSD-3-Clause

// Layouts of regions.
#include "matrix/structures.h"

#include <utility>

#include "matrix/autocast_guard.h"

namespace remat::matrix {
namespace {

/// Returns `inputs` with `stream`, the residual stream, as the first input.
Tensors with_stream(Tensors inputs, at::Tensor stream) {
  inputs[0] = std::move(stream);
  return inputs;
}

Tensors joined(Tensors outputs, const Tensors& more) {
  outputs.insert(outputs.end(), more.begin(), more.end());
  return outputs;
}

Tensors one(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  return wrap(block, inputs);
}

Tensors two_sharing(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  const Tensors first = wrap(block, inputs);
  return joined(wrap(block, with_stream(inputs, first[0])), first);
}

/// Runs 2^(depth - 1) blocks in `depth` levels of regions, with further ops on each level.
Tensors nested(int depth, const Wrap& wrap, const Block& block, const Tensors& inputs) {
  if (depth == 1) return wrap(block, inputs);
  const Block outer = [=](const Tensors& in) {
    const Tensors first = nested(depth - 1, wrap, block, with_stream(in, in[0].sin()));
    return joined(nested(depth - 1, wrap, block, with_stream(in, first[0].tanh())), first);
  };
  return wrap(outer, inputs);
}

Tensors nested_2_deep(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  return nested(2, wrap, block, inputs);
}

Tensors nested_3_deep(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  return nested(3, wrap, block, inputs);
}

/// An inference tensor cannot be saved for backward; its clone can.
Tensors cloned_inside(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  const Block cloning = [=](Tensors in) {
    for (at::Tensor& tensor : in) tensor = tensor.clone();
    return block(in);
  };
  return wrap(cloning, inputs);
}

Tensors under_autocast(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  const AutocastGuard autocast;
  return two_sharing(wrap, block, inputs);
}

Tensors autocast_inside(const Wrap& wrap, const Block& block, const Tensors& inputs) {
  const Block casting = [=](const Tensors& in) {
    const AutocastGuard autocast;
    return block(in);
  };
  return two_sharing(wrap, casting, inputs);
}

}  // namespace

const std::vector<Structure>& structures() {
  static const std::vector<Structure> all = {
      {"one region", InputKind::kGrad, one},
      {"two regions sharing weights", InputKind::kGrad, two_sharing},
      {"nested 2 deep", InputKind::kGrad, nested_2_deep},
      {"nested 3 deep", InputKind::kGrad, nested_3_deep},
      {"no-grad inputs", InputKind::kNoGrad, two_sharing},
      {"inference inputs", InputKind::kInference, one},
      {"inference inputs cloned inside", InputKind::kInference, cloned_inside},
      {"autocast", InputKind::kGrad, under_autocast},
      {"autocast inside", InputKind::kGrad, autocast_inside},
  };
  return all;
}

}  // namespace remat::matrix
