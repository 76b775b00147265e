// SPDX-License-Identifier: BSD-3-Clause

// One training step after another in one mode, each with its bytes and time.
#pragma once

#include "model.h"
#include "text.h"

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

namespace gpt2_train {

/// Bytes are what forward and backward allocate on top of parameters, optimizer state and data.
struct StepRecord {
  at::Tensor loss;             // 0-dim, detached
  int64_t resident_bytes = 0;  // live when the forward has ended
  int64_t peak_bytes = 0;      // of forward and backward
  double seconds = 0;          // forward, backward and optimizer
};

class Trainer {
 public:
  /// Weights depend on `seed` alone.
  Trainer(const Gpt2Config& config, Mode mode, double learning_rate, uint64_t seed);

  /// Trains on the batch and leaves the gradients in the model. Dropout depends on `seed` alone.
  StepRecord step(const Batch& batch, uint64_t seed);

  /// Forward and backward of step() without the optimizer: weights stay as they are.
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

/// The first parameter that differs in a bit, or whose gradient does; empty if there is none.
/// Models of equal structure.
std::string first_difference(const torch::nn::Module& expected, const torch::nn::Module& got);

/// Whether two tensors have the same bits: unlike in at::equal, NaN equals itself and 0 is not -0.
bool same_bits(const at::Tensor& expected, const at::Tensor& got);

}  // namespace gpt2_train
