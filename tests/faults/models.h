// SPDX-License-Identifier: BSD-3-Clause

// Small models with regions in them, each written once and run plain or checkpointed.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/backend/checkpoint_options.h>

namespace remat::faults {

using Tensors = std::vector<at::Tensor>;
using TensorFn = std::function<at::Tensor(const at::Tensor&)>;

/// The last point of a region's function.
constexpr const char* kFunctionEnds = "a function ends";

/// State of the user's that each call of a region's function changes.
struct Counter;

/// How a model's regions run.
struct Regions {
  bool plain = false;                             ///< As calls of their functions.
  ReplayEngine engine = ReplayEngine::kFunction;  ///< Where a region asks for none.
  bool new_names = false;                         ///< Of no tape anything is known yet.
  std::shared_ptr<Counter> callbacks{};           ///< Set: every hook there is, with a point.
  bool traced = false;  ///< With callbacks: each write of a trace is a point. On one thread.

  at::Tensor run(CheckpointOptions options, TensorFn fn, const at::Tensor& x) const;

  /// With callbacks, collects named calls while it lives; writes a trace if it is to be.
  std::shared_ptr<void> watch() const;

  int count() const;  ///< Of what the callbacks change.
  void reset_count() const;
};

std::shared_ptr<Counter> make_callbacks();

struct Model {
  Tensors parameters;
  Tensors buffers;
  std::vector<at::Generator> generators;  ///< All that it draws from.
  std::function<at::Tensor(const Regions&)> loss;
};

struct NamedModel {
  std::string name;
  std::function<Model()> make;  ///< The same parameters each time; seeds the default generator.
};

Model make_gpt2();
Model make_resnet();
Model make_lstm();
Model make_moe();
Model make_nested();

/// Draws from a generator of its own, so that several threads may run one each.
Model make_mlp();

}  // namespace remat::faults
