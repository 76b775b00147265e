// SPDX-License-Identifier: BSD-3-Clause

// Small models with regions, each written once and run plain or checkpointed.
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

/// Name of the last point of a region's function.
constexpr const char* kFunctionEnds = "a function ends";

/// User state that each call of a region's function changes.
struct Counter;

/// How a model's regions run.
struct Regions {
  bool plain = false;                             ///< Regions are plain calls of their functions.
  ReplayEngine engine = ReplayEngine::kFunction;  ///< For regions that name no engine.
  bool new_names = false;                         ///< Each region has a name that has no tape yet.
  std::shared_ptr<Counter> callbacks{};           ///< If set, every hook exists and may throw.

  at::Tensor run(CheckpointOptions options, TensorFn fn, const at::Tensor& x) const;

  /// If `callbacks` is set, collects named calls as long as the result lives.
  std::shared_ptr<void> watch() const;

  int count() const;  ///< Returns the number that the callbacks change.
  void reset_count() const;
};

std::shared_ptr<Counter> make_callbacks();

struct Model {
  Tensors parameters;
  Tensors buffers;
  std::vector<at::Generator> generators;  ///< All generators from which the model draws.
  std::function<at::Tensor(const Regions&)> loss;
};

struct NamedModel {
  std::string name;
  std::function<Model()> make;  ///< Makes equal parameters; seeds the default generator.
};

Model make_gpt2();
Model make_resnet();
Model make_lstm();
Model make_moe();
Model make_nested();

/// Draws from its own generator, so that several threads may run one each.
Model make_mlp();

}  // namespace remat::faults
