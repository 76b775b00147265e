// SPDX-License-Identifier: BSD-3-Clause

// Training steps under a memory meter and a clock, and the bitwise comparison of two models.
#include "trainer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <remat/remat.h>

namespace gpt2_train {

namespace {

constexpr int64_t kWarmupSteps = 10;  // steps in which the learning rate rises linearly

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Gpt2 make_seeded_model(const Gpt2Config& config, Mode mode, uint64_t seed) {
  torch::manual_seed(seed);
  return Gpt2(config, mode);
}

}  // namespace

Trainer::Trainer(const Gpt2Config& config, Mode mode, double learning_rate, uint64_t seed)
    : model_(make_seeded_model(config, mode, seed)),
      loss_(make_loss(model_, mode.layout)),
      learning_rate_(learning_rate),
      optimizer_(model_->parameters(), torch::optim::AdamWOptions(learning_rate)) {}

Trainer::Loss Trainer::make_loss(const Gpt2& model, Layout layout) {
  const auto loss = [model = model](const at::Tensor& inputs, const at::Tensor& targets) mutable {
    return torch::nn::functional::cross_entropy(model->forward(inputs).flatten(0, 1),
                                                targets.flatten());
  };
  if (layout != Layout::kBudget) return loss;
  return remat::auto_checkpoint({.name = "gpt2", .memory_budget = "50%"})(loss);
}

StepRecord Trainer::compute_gradients(const Batch& batch, uint64_t seed) {
  optimizer_.zero_grad();
  torch::manual_seed(seed);
  StepRecord record;
  const Clock::time_point begin = Clock::now();
  const remat::MemoryMeter meter;
  at::Tensor loss = loss_(batch.inputs, batch.targets);
  record.resident_bytes = meter.current_bytes();
  loss.backward();
  record.peak_bytes = meter.peak_bytes();
  record.loss = loss.detach();
  record.seconds = seconds_since(begin);
  return record;
}

StepRecord Trainer::step(const Batch& batch, uint64_t seed) {
  StepRecord record = compute_gradients(batch, seed);
  const Clock::time_point begin = Clock::now();
  ++steps_;
  const double warm = static_cast<double>(steps_) / static_cast<double>(kWarmupSteps);
  optimizer_.param_groups().front().options().set_lr(learning_rate_ * std::min(1.0, warm));
  optimizer_.step();
  record.seconds += seconds_since(begin);
  return record;
}

bool same_bits(const at::Tensor& expected, const at::Tensor& got) {
  if (!expected.defined() || !got.defined()) return expected.defined() == got.defined();
  if (expected.sizes() != got.sizes() || expected.dtype() != got.dtype()) return false;
  const at::Tensor left = expected.contiguous();
  const at::Tensor right = got.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

std::string first_difference(const torch::nn::Module& expected, const torch::nn::Module& got) {
  const auto others = got.named_parameters();
  for (const auto& parameter : expected.named_parameters()) {
    const at::Tensor& other = others[parameter.key()];
    if (!same_bits(parameter.value().grad(), other.grad())) {
      return "gradient of " + parameter.key();
    }
    if (!same_bits(parameter.value(), other)) return parameter.key();
  }
  return {};
}

}  // namespace gpt2_train
