// SPDX-License-Identifier: BSD-3-Clause

// profile(options)(fn)(args...): measures a training step of fn, op by op.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <remat/backend/checkpoint.h>
#include <remat/budget/step_runner.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/tape/cuts.h>
#include <remat/tape/export.h>

namespace remat {

struct ProfileOptions {
  std::string name{};  ///< Name of the function in messages
  int steps = 4;       ///< Number of steps to measure, after a warm-up step
};

/// Measures steps: runs one forward that is dropped, then options.steps + 1 steps on a cut tape
/// that keeps little. Afterwards restores memory that existed before and was written by ops, the
/// default generators and the .grad of leaves; other side effects of the function stay. Runs on the
/// calling thread, one measurement at a time in the process. Throws NotImplementedError, naming the
/// op, if no tape can replay it; ValueError if steps < 1; RuntimeError if steps run different ops.
REMAT_API StepProfile profile_steps(StepRunner& runner, const ProfileOptions& options);

namespace detail {

template <class Forward>
class LossRunner final : public StepRunner {
 public:
  explicit LossRunner(Forward forward) : forward_(std::move(forward)) {}

  void forward(const Cuts& cuts, StepRecording* /*recording*/) override { loss_ = forward_(cuts); }
  void backward() override { loss_.backward(); }
  void drop() noexcept override { loss_.reset(); }

 private:
  Forward forward_;
  at::Tensor loss_;
};

}  // namespace detail

/// The intermediate result of profile(options), which takes the function.
class ProfileBuilder {
 public:
  explicit ProfileBuilder(ProfileOptions options) : options_(std::move(options)) {}

  /// Takes a function as CheckpointBuilder does; it must return its loss, a tensor with one
  /// element. The result takes the arguments and returns the StepProfile.
  template <class F>
  auto operator()(F&& fn) const {
    return [options = options_, fn = std::decay_t<F>(std::forward<F>(fn))](auto&&... args) {
      detail::LossRunner runner([&](const Cuts& cuts) -> at::Tensor {
        return checkpoint({.name = options.name, .replay = ReplayEngine::kTape, .cuts = cuts})(fn)(
            args...);
      });
      return profile_steps(runner, options);
    };
  }

 private:
  ProfileOptions options_;
};

/// Measures a function's steps: profile({.name = "step"})(step)(x, y). Source: torch_remat has
/// none; Rockmate's inspection.
inline ProfileBuilder profile(ProfileOptions options = {}) {
  return ProfileBuilder(std::move(options));
}

}  // namespace remat
