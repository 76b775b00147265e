// SPDX-License-Identifier: BSD-3-Clause

// Training steps under a memory meter and a clock, and their bitwise comparison.
#include "trainer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
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

/// Names the first parameter that differs in a bit, or whose gradient does; empty if there is none.
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

}  // namespace

Trainer::Trainer(const Gpt2Config& config, Mode mode, double learning_rate, uint64_t seed)
    : mode_(mode.name),
      model_(make_seeded_model(config, mode, seed)),
      loss_(make_loss(model_, mode.layout)),
      learning_rate_(learning_rate),
      optimizer_(model_->parameters(), torch::optim::AdamWOptions(learning_rate)) {}

Trainer::Loss Trainer::make_loss(const Gpt2& model, Layout layout) {
  const auto loss = [model = model](const at::Tensor& bytes) mutable {
    return torch::nn::functional::cross_entropy(model->forward(bytes.slice(1, 0, -1)).flatten(0, 1),
                                                bytes.slice(1, 1).flatten());
  };
  if (layout != Layout::kBudget) return loss;
  return remat::auto_checkpoint({.name = "gpt2", .memory_budget = "50%"})(loss);
}

StepRecord Trainer::compute_gradients(const at::Tensor& bytes, uint64_t seed) {
  optimizer_.zero_grad();
  torch::manual_seed(seed);
  StepRecord record;
  const Clock::time_point begin = Clock::now();
  const remat::MemoryMeter meter;
  at::Tensor loss = loss_(bytes);
  record.resident_bytes = meter.current_bytes();
  loss.backward();
  record.peak_bytes = meter.peak_bytes();
  record.loss = loss.detach();
  record.seconds = seconds_since(begin);
  return record;
}

void Trainer::step(const at::Tensor& bytes, uint64_t seed) {
  steps_.push_back(compute_gradients(bytes, seed));
  const Clock::time_point begin = Clock::now();
  const double warm = static_cast<double>(steps_.size()) / static_cast<double>(kWarmupSteps);
  optimizer_.param_groups().front().options().set_lr(learning_rate_ * std::min(1.0, warm));
  optimizer_.step();
  steps_.back().seconds += seconds_since(begin);
}

void Trainer::compare(const Trainer& plain) {
  if (!difference.empty()) return;
  const bool equal_loss = same_bits(plain.steps_.back().loss, steps_.back().loss);
  const std::string which = equal_loss ? first_difference(*plain.model_, *model_) : "loss";
  if (!which.empty()) difference = fmt::format("{} in step {}", which, steps_.size());
}

bool same_bits(const at::Tensor& expected, const at::Tensor& got) {
  if (!expected.defined() || !got.defined()) return expected.defined() == got.defined();
  if (expected.sizes() != got.sizes() || expected.dtype() != got.dtype()) return false;
  const at::Tensor left = expected.contiguous();
  const at::Tensor right = got.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace gpt2_train
