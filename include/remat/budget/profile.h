// SPDX-License-Identifier: BSD-3-Clause

// profile(options)(fn)(args...): what a training step of fn costs, op by op.
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
  std::string name{};  ///< Of the function, for messages.
  int steps = 4;       ///< That are measured, after one that warms up.
};

/// Measures steps: one forward that is dropped, then options.steps + 1 steps on a cut tape, which
/// keeps little. What ops have written that was there before, the default generators and the .grad
/// of leaves are afterwards as they were; other effects of the function stay. On the calling
/// thread, one measurement at a time in the process. Throws NotImplementedError for what no tape
/// can replay, naming the op; ValueError if steps < 1; RuntimeError if steps run different ops.
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

/// What profile(options) returns: waits for the function.
class ProfileBuilder {
 public:
  explicit ProfileBuilder(ProfileOptions options) : options_(std::move(options)) {}

  /// Takes what checkpoint()'s builder takes, if it returns its loss: a tensor of one number. The
  /// result takes the arguments and returns the StepProfile.
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

/// profile({.name = "step"})(step)(x, y). Source: torch_remat has none; Rockmate's inspection.
inline ProfileBuilder profile(ProfileOptions options = {}) {
  return ProfileBuilder(std::move(options));
}

}  // namespace remat
