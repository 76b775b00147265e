// SPDX-License-Identifier: BSD-3-Clause

// Trains in one mode: measures the bytes and time of each step, and compares it with another mode.
#pragma once

#include "model.h"

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
  /// The initial weights depend on `seed` alone.
  Trainer(const Gpt2Config& config, Mode mode, double learning_rate, uint64_t seed);

  /// Trains on `bytes`, [batch, length], of which the last column is only a target. Leaves the
  /// gradients in the model. Dropout depends on `seed` alone.
  void step(const at::Tensor& bytes, uint64_t seed);

  /// Runs step() without the optimizer, so that the weights stay unchanged.
  StepRecord compute_gradients(const at::Tensor& bytes, uint64_t seed);

  /// Notes the first difference of the last step from that of `plain`.
  void compare(const Trainer& plain);

  const torch::nn::Module& model() const { return *model_; }
  const char* mode() const { return mode_; }
  const std::vector<StepRecord>& steps() const { return steps_; }

  std::string difference;  ///< empty if every step is bitwise equal to plain's

 private:
  using Loss = std::function<at::Tensor(const at::Tensor& bytes)>;

  static Loss make_loss(const Gpt2& model, Layout layout);

  const char* mode_;
  Gpt2 model_;
  Loss loss_;
  double learning_rate_;
  std::vector<StepRecord> steps_;
  torch::optim::AdamW optimizer_;
};

/// True if two tensors have the same bits: unlike in at::equal, NaN equals itself and 0 is not -0.
bool same_bits(const at::Tensor& expected, const at::Tensor& got);

}  // namespace gpt2_train
