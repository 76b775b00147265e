// SPDX-License-Identifier: BSD-3-Clause

// The uses of a graph.
#include "matrix/uses.h"

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <exception>
#include <latch>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <remat/remat.h>

#include "matrix/copying_hooks.h"
#include "support/silence.h"

namespace remat::matrix {
namespace {

using torch::autograd::grad;

class NoFlashAttentionGuard {
 public:
  NoFlashAttentionGuard() : was_enabled_(at::globalContext().userEnabledFlashSDP()) {
    at::globalContext().setSDPUseFlash(false);
  }
  NoFlashAttentionGuard(const NoFlashAttentionGuard&) = delete;
  NoFlashAttentionGuard& operator=(const NoFlashAttentionGuard&) = delete;
  ~NoFlashAttentionGuard() { at::globalContext().setSDPUseFlash(was_enabled_); }

 private:
  bool was_enabled_;
};

/// Returns a number that depends on each element of every output in a different way.
at::Tensor loss_of(const Tensors& outputs) {
  at::Tensor loss = torch::zeros({});
  for (const at::Tensor& output : outputs) {
    const at::Tensor weights = torch::linspace(-1, 2, output.numel()).view(output.sizes());
    loss = loss + (output.to(at::kFloat).sin() * weights).sum();
  }
  return loss;
}

Tensors grads_of(const at::Tensor& loss, const Tensors& leaves, bool create_graph) {
  return grad({loss}, leaves, {}, /*retain_graph=*/true, create_graph, /*allow_unused=*/true);
}

/// Runs forward and backward of `block`, and records outputs and gradients.
void train(const Program& program, const Block& block, Outcome& outcome) {
  const Tensors inputs = program.make_inputs();
  const Tensors outputs = program.forward(inputs, block);
  outcome.add_all("output", outputs);
  loss_of(outputs).backward();
  outcome.add_grads("input", inputs);
}

void backward(const Program& program, Outcome& outcome) {
  train(program, program.model.block, outcome);
}

void backward_twice(const Program& program, Outcome& outcome) {
  const Tensors inputs = program.make_inputs();
  const Tensors outputs = program.forward(inputs);
  outcome.add_all("output", outputs);
  const at::Tensor loss = loss_of(outputs);
  loss.backward({}, /*retain_graph=*/true);
  outcome.add_grads("first, input", inputs);
  outcome.add_grads("first, parameter", program.model.parameters);
  loss.backward();
  outcome.add_grads("second, input", inputs);
}

void grad_of_some(const Program& program, Outcome& outcome) {
  const Tensors inputs = program.make_inputs();
  const at::Tensor loss = loss_of(program.forward(inputs));
  const Tensors leaves = program.leaves(inputs);
  outcome.add_all("last leaf", grads_of(loss, {leaves.back()}, /*create_graph=*/false));
  outcome.add_all("first leaf", grads_of(loss, {leaves.front()}, /*create_graph=*/false));
  outcome.add_all("all leaves", grads_of(loss, leaves, /*create_graph=*/false));
  outcome.add_grads("untouched, parameter", program.model.parameters);
}

/// The block calls backward(), which also runs nodes from before the block, and then grad().
void backward_inside(const Program& program, Outcome& outcome) {
  const Model& model = program.model;
  const Block block = [&model](const Tensors& in) {
    Tensors out = model.block(in);
    const at::Tensor inner_loss = loss_of(out);
    inner_loss.backward({}, /*retain_graph=*/true);
    out[0] = out[0] + grads_of(inner_loss, {model.parameters[0]}, false)[0].mean();
    return out;
  };
  train(program, block, outcome);
}

/// The block's output contains a gradient, through which the backward passes.
void grad_with_graph_inside(const Program& program, Outcome& outcome) {
  const Model& model = program.model;
  const Block block = [&model](const Tensors& in) {
    Tensors out = model.block(in);
    out[0] = out[0] + grads_of(loss_of(out), {model.parameters[0]}, true)[0].mean();
    return out;
  };
  train(program, block, outcome);
}

void double_backward(const Program& program, Outcome& outcome) {
  const Tensors inputs = program.make_inputs();
  const Tensors outputs = program.forward(inputs);
  const Tensors grads = grads_of(loss_of(outputs), program.leaves(inputs), /*create_graph=*/true);
  outcome.add_all("output", outputs);
  outcome.add_all("gradient", grads);
  at::Tensor penalty = torch::zeros({});
  for (const at::Tensor& grad : grads) {
    if (grad.defined()) penalty = penalty + grad.pow(2).sum();
  }
  penalty.backward();
  outcome.add_grads("input", inputs);
}

void four_threads(const Program& program, Outcome& outcome) {
  constexpr size_t kThreads = 4;
  const Tensors inputs = program.make_inputs();
  const at::Tensor loss = loss_of(program.forward(inputs));
  const Tensors leaves = program.leaves(inputs);
  std::array<Tensors, kThreads> grads;
  std::array<std::exception_ptr, kThreads> errors;
  std::latch start(kThreads);
  const auto work = [&](size_t i) {
    start.arrive_and_wait();
    try {
      grads[i] = grads_of(loss, leaves, /*create_graph=*/false);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kThreads; ++i) {
    if (errors[i]) std::rethrow_exception(errors[i]);
    outcome.add_all("thread " + std::to_string(i), grads[i]);
  }
  loss.backward();
  outcome.add_grads("input", inputs);
}

void microbatches(const Program& program, Outcome& outcome) {
  std::array<Tensors, 3> inputs;
  std::array<at::Tensor, 3> losses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = program.make_inputs();
    losses[i] = loss_of(program.forward(inputs[i]));
    outcome.add("loss", losses[i]);
  }
  for (const size_t i : {1, 0, 2}) {
    losses[i].backward();
    outcome.add_grads("input", inputs[i]);
    outcome.add_grads("so far, parameter", program.model.parameters);
  }
}

void training_steps(const Program& program, Outcome& outcome) {
  for (int step = 0; step < 3; ++step) {
    train(program, program.model.block, outcome);
    const torch::NoGradGuard no_grad;
    for (at::Tensor parameter : program.model.parameters) {
      if (!parameter.grad().defined()) continue;
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().zero_();
    }
    outcome.add_all("parameter", program.model.parameters);
  }
}

/// Opens hooks around the model's block, inside the region if there is one.
void hooks_inside(const Program& program, Outcome& outcome) {
  int64_t packed = 0;
  const Model& model = program.model;
  const Block block = [&model, &packed](const Tensors& in) {
    Tensors hooked = in;
    hooked[0] = in[0].sin();
    std::optional<SavedTensorsHooksGuard> hooks(counting_hooks(packed));
    Tensors out = model.block(hooked);
    hooks.reset();
    out[0] = out[0].sigmoid();
    return out;
  };
  train(program, block, outcome);
}

void hooks_around(const Program& program, Outcome& outcome) {
  int64_t packed = 0;
  const SavedTensorsHooksGuard hooks(counting_hooks(packed));
  train(program, program.model.block, outcome);
}

void hooks_inside_and_around(const Program& program, Outcome& outcome) {
  int64_t packed_around = 0;
  const SavedTensorsHooksGuard hooks(counting_hooks(packed_around));
  hooks_inside(program, outcome);
}

/// Anomaly mode without what it prints: that it is on, and where the failing op was called.
class QuietAnomalyMode {
 private:
  Silence silence_;
  torch::autograd::DetectAnomalyGuard anomaly_;
};

void anomaly_mode(const Program& program, Outcome& outcome) {
  const QuietAnomalyMode anomaly;
  train(program, program.model.block, outcome);
}

void anomaly_mode_finding_nan(const Program& program, Outcome& outcome) {
  const QuietAnomalyMode anomaly;
  const Block& model_block = program.model.block;
  const Block block = [&model_block](const Tensors& in) {
    Tensors out = model_block(in);
    out[0] = (out[0] * std::numeric_limits<float>::infinity()).sin();
    return out;
  };
  train(program, block, outcome);
}

}  // namespace

Tensors Program::make_inputs() const {
  const c10::InferenceMode inference(structure.input_kind == InputKind::kInference);
  Tensors inputs = model.make_inputs();
  for (at::Tensor& input : inputs) {
    const bool wants_grad = structure.input_kind == InputKind::kGrad && input.is_floating_point();
    input.set_requires_grad(wants_grad);
  }
  return inputs;
}

Tensors Program::forward(const Tensors& inputs, const Block& block) const {
  std::optional<NoFlashAttentionGuard> no_flash;
  if (model.math_attention) no_flash.emplace();
  return structure.run(wrap, block, inputs);
}

Tensors Program::leaves(const Tensors& inputs) const {
  Tensors leaves = model.parameters;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  return leaves;
}

const std::vector<Use>& uses() {
  static const std::vector<Use> all = {
      {"backward", backward},
      {"backward twice", backward_twice},
      {"grad of some inputs", grad_of_some},
      {"backward and grad inside", backward_inside},
      {"grad with graph inside", grad_with_graph_inside},
      {"double backward", double_backward},
      {"4 threads", four_threads},
      {"microbatches", microbatches},
      {"training steps", training_steps},
      {"hooks inside", hooks_inside},
      {"hooks around", hooks_around},
      {"hooks inside and around", hooks_inside_and_around},
      {"anomaly mode", anomaly_mode},
      {"anomaly mode finding NaN", anomaly_mode_finding_nan},
  };
  return all;
}

}  // namespace remat::matrix
