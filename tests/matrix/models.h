// SPDX-License-Identifier: BSD-3-Clause

// The models of the matrix, each written once and run plain or checkpointed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace remat::matrix {

using Tensors = std::vector<at::Tensor>;

/// The function that a region runs. The first output has the shape of the first input, so that
/// blocks can be chained.
using Block = std::function<Tensors(const Tensors&)>;

/// Calls a block: plain or as a region.
using Wrap = std::function<Tensors(const Block&, const Tensors&)>;

struct Model {
  Tensors parameters;
  Tensors buffers;
  std::function<Tensors()> make_inputs;  ///< Draws from the default generator.
  Block block;
  bool math_attention = false;  ///< The forward, not the backward, runs without flash attention.
};

struct NamedModel {
  std::string name;
  std::function<Model()> make;  ///< Draws the parameters from the default generator.
};

Model make_mlp();
Model make_flash_gpt2_block();
Model make_math_gpt2_block();
Model make_attention_dropout_gpt2_block();
Model make_conv_batch_norm();
Model make_lstm();
Model make_top2_moe();
Model make_tied_embedding();
Model make_custom_function();
Model make_in_place_views();
Model make_returned_input();

}  // namespace remat::matrix
