// SPDX-License-Identifier: BSD-3-Clause

// The steps that are measured, one after the other.
#include <remat/budget/profile.h>

#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/memory_plan/measuring_cuts.h>

namespace remat {
namespace {

/// While it lives leaves that have a .grad have zeros in its place; afterwards they are what they
/// were.
class GradientsApart {
 public:
  explicit GradientsApart(const std::vector<at::Tensor>& leaves) : leaves_(leaves) {
    for (const at::Tensor& leaf : leaves_) {
      at::Tensor zeros = leaf.grad().defined() ? at::zeros_like(leaf.grad()) : at::Tensor();
      gradients_.push_back(std::exchange(leaf.mutable_grad(), std::move(zeros)));
    }
  }
  GradientsApart(const GradientsApart&) = delete;
  GradientsApart& operator=(const GradientsApart&) = delete;
  ~GradientsApart() {
    for (const auto i : c10::irange(leaves_.size()))
      leaves_[i].mutable_grad() = std::move(gradients_[i]);
  }

 private:
  const std::vector<at::Tensor>& leaves_;
  std::vector<at::Tensor> gradients_;
};

/// What the runner holds ends before what was written is undone.
class Held {
 public:
  explicit Held(StepRunner& runner) : runner_(runner) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { runner_.drop(); }

 private:
  StepRunner& runner_;
};

/// One forward of which nothing is kept.
std::unique_ptr<StepMeasurement> measure_forward(StepRunner& runner, const std::string& name) {
  StepRecording recording(/*undoes_writes=*/true);
  const Held held(runner);
  runner.forward({}, recording);
  recording.end_forward();
  return std::make_unique<StepMeasurement>(name, recording.finish());
}

StepLog measure_step(StepRunner& runner, const Cuts& cuts) {
  StepRecording recording(/*undoes_writes=*/true);
  const Held held(runner);
  runner.forward(cuts, recording);
  recording.end_forward();
  runner.backward();
  runner.drop();
  return recording.finish();
}

}  // namespace

StepProfile profile_steps(StepRunner& runner, const ProfileOptions& options) {
  TORCH_CHECK_VALUE(options.steps >= 1, "[profile] steps: expected 1 or more, got ", options.steps,
                    ".");
  const auto measurement = measure_forward(runner, options.name);
  Cuts cuts;
  for (const int32_t position : measuring_cuts(measurement->profile()))
    cuts.positions.push_back(static_cast<size_t>(position));
  for (const auto i : c10::irange(options.steps + 1)) {  // the first one warms up
    const GradientsApart apart(measurement->leaves());
    const StepLog log = measure_step(runner, cuts);
    TORCH_CHECK(i == 0 || measurement->add_step(log), "[profile] '", options.name,
                "': expected each step to run the same ops, got others in step ", i,
                ". Measure a function whose ops do not depend on data, or with data that makes "
                "them the same.");
  }
  return measurement->profile();
}

}  // namespace remat
