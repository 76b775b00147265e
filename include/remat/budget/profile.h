// SPDX-License-Identifier: BSD-3-Clause

// profile(options)(fn)(args...): measures a training step of fn, op by op.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>
#include <utility>

#include <remat/backend/checkpoint.h>
#include <remat/engine/export.h>
#include <remat/planner/step_profile.h>

namespace remat {

class StepRecording;

/// Runs the steps that are measured.
class REMAT_API StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Calls checkpoint(options)(function) and holds the result until drop(). An implementation may
  /// call recording->enter(module) to say which module runs.
  virtual void forward(const CheckpointOptions& options, StepRecording* recording) = 0;

  /// Runs backward from the function's result.
  virtual void backward() = 0;

  /// Drops the function's result.
  virtual void drop() noexcept = 0;
};

struct ProfileOptions {
  std::string name{};  ///< Name of the function in messages
  int steps = 4;       ///< Number of steps to measure, after a warm-up step
};

/// Runs options.steps + 1 steps, on tapes that keep little. The .grad of leaves is set aside
/// meanwhile; other effects of the steps stay, such as those on running statistics and random
/// generators. Runs on the calling thread, one measurement at a time in the process.
///
/// Throws NotImplementedError if no tape can replay an op, if the function saves nothing for
/// backward or has regions of its own, or if a step is differentiated twice; ValueError if steps <
/// 1, in a region or without grad mode, if no backward runs, or if a tensor from outside that needs
/// a gradient is no leaf; RuntimeError if steps run different ops, or if the process is already
/// recording a step.
REMAT_API StepProfile profile_steps(StepRunner& runner, const ProfileOptions& options);

namespace detail {

template <class Forward>
class LossRunner final : public StepRunner {
 public:
  explicit LossRunner(Forward forward) : forward_(std::move(forward)) {}

  void forward(const CheckpointOptions& options, StepRecording* /*recording*/) override {
    loss_ = forward_(options);
  }
  void backward() override { loss_.backward(); }
  void drop() noexcept override { loss_.reset(); }

 private:
  Forward forward_;
  at::Tensor loss_;
};

}  // namespace detail

/// Measures a function's steps: profile({.name = "step"})(step)(x, y) returns the StepProfile. The
/// function is one that checkpoint() takes and returns its loss, a tensor with one element. Source:
/// Rockmate's inspection; torch_remat has no such function.
inline auto profile(ProfileOptions options = {}) {
  return [options = std::move(options)](auto&& fn) {
    using F = std::decay_t<decltype(fn)>;
    return [options, fn = F(std::forward<decltype(fn)>(fn))](auto&&... args) {
      detail::LossRunner runner([&](const CheckpointOptions& region) -> at::Tensor {
        return checkpoint(region)(fn)(args...);
      });
      return profile_steps(runner, options);
    };
  };
}

}  // namespace remat
