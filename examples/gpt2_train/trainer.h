// SPDX-License-Identifier: BSD-3-Clause

// Runs training steps in one mode and measures the bytes and time of each.
#pragma once

#include "model.h"
#include "text.h"

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

namespace gpt2_train {

/// Measurements of a step. Bytes count what forward and backward allocate beyond parameters,
/// optimizer state and data.
struct StepRecord {
  at::Tensor loss;             // 0-dim, detached
  int64_t resident_bytes = 0;  // live at the end of the forward
  int64_t peak_bytes = 0;      // highest during forward and backward
  double seconds = 0;          // forward, backward and optimizer
};

class Trainer {
 public:
  /// The weights depend on `seed` alone.
  Trainer(const Gpt2Config& config, Mode mode, double learning_rate, uint64_t seed);

  /// Trains on the batch and leaves the gradients in the model. Dropout depends on `seed` alone.
  StepRecord step(const Batch& batch, uint64_t seed);

  /// Runs step() without the optimizer, so that the weights stay unchanged.
  StepRecord compute_gradients(const Batch& batch, uint64_t seed);

  const torch::nn::Module& model() const { return *model_; }

 private:
  using Loss = std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& targets)>;

  static Loss make_loss(const Gpt2& model, Layout layout);

  Gpt2 model_;
  Loss loss_;
  double learning_rate_;
  int64_t steps_ = 0;
  torch::optim::AdamW optimizer_;
};

/// Names the first parameter that differs in a bit, or whose gradient does; empty if there is none.
/// The models must have the same structure.
std::string first_difference(const torch::nn::Module& expected, const torch::nn::Module& got);

/// True if two tensors have the same bits: unlike in at::equal, NaN equals itself and 0 is not -0.
bool same_bits(const at::Tensor& expected, const at::Tensor& got);

}  // namespace gpt2_train
