// SPDX-License-Identifier: BSD-3-Clause

// The steps that profile() measures, one after the other.
#include <remat/budget/profile.h>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/budget/pending_step.h>
#include <remat/budget/plain_call_cuts.h>
#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/memory_plan/measuring_cuts.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>

#include "gradients_apart.h"

namespace remat {
namespace {

/// Drops the function's result when destroyed.
class HeldResult {
 public:
  explicit HeldResult(StepForward& step) : step_(step) {}
  HeldResult(const HeldResult&) = delete;
  HeldResult& operator=(const HeldResult&) = delete;
  ~HeldResult() { step_.drop(); }

 private:
  StepForward& step_;
};

void check_thread(const std::string& name) {
  TORCH_CHECK_VALUE(c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(), "[profile] '",
                    name,
                    "': expected grad mode, got no_grad or inference mode: a step runs backward. "
                    "Measure outside of them.");
  if (!Scope::current()) return;
  const Region* const region = Scope::current_trace_scope().region;
  TORCH_CHECK_VALUE(false, "[profile] '", name,
                    "': expected a call outside of regions, got one in ",
                    region ? region->label() : "hooks of remat",
                    ". Measure the function before the region, or the region's own function.");
}

void check_backward(const StepLog& step, const std::string& name) {
  TORCH_CHECK_VALUE(!step.nodes.empty(), "[profile] '", name,
                    "': expected backward to run, got a step in which no node did. Call backward() "
                    "on what the function returns.");
  TORCH_CHECK_NOT_IMPLEMENTED(step.later_node.empty(), "[profile] '", name,
                              "': expected backward to run what the forward has made, got ",
                              step.later_node,
                              " that a backward has made (create_graph). Steps that are "
                              "differentiated twice are not planned.");
  const std::string fault = step.backward_fault();
  TORCH_CHECK_NOT_IMPLEMENTED(fault.empty(), "[profile] '", name, "': ", fault);
}

void check_leaves(const std::vector<at::Tensor>& leaves, const std::string& name) {
  for (const at::Tensor& tensor : leaves) {
    TORCH_CHECK_VALUE(tensor.is_leaf(), "[profile] '", name,
                      "': expected arguments and captured tensors to be leaves, or to need no "
                      "gradient, got one made by ",
                      tensor.grad_fn()->name(),
                      ": every step would run backward through that again. Pass "
                      "tensor.detach().requires_grad_(), or make it in the function.");
  }
}

/// Measures the step's structure, and the leaves that it uses.
std::unique_ptr<StepMeasurement> measurement_of(const StepRecording& recording,
                                                const std::string& name,
                                                std::vector<at::Tensor>& leaves) {
  auto measurement = StepMeasurement::of(name, recording.log());
  TORCH_CHECK_NOT_IMPLEMENTED(
      measurement, "[profile] '", name,
      "': expected a function that saves what it makes for backward, got one that does not. There "
      "is nothing to plan: call it as it is.");
  leaves = measurement->take_leaves();
  check_leaves(leaves, name);
  return measurement;
}

/// Runs a step. `after_forward(recording)` is called before backward.
template <class AfterForward>
StepLog measure_step(StepRunner& runner, const Cuts& cuts, AfterForward&& after_forward) {
  StepRecording recording(/*undoes_writes=*/true);
  const HeldResult held(runner);
  runner.forward(cuts, &recording);
  recording.end_forward();
  after_forward(recording);
  runner.backward();
  runner.drop();
  return recording.finish();
}

}  // namespace

StepProfile profile_steps(StepRunner& runner, const ProfileOptions& options) {
  TORCH_CHECK_VALUE(options.steps >= 1, "[profile] steps: expected 1 or more, got ", options.steps,
                    ".");
  check_thread(options.name);
  PendingStep::cancel();
  std::unique_ptr<StepMeasurement> measurement;
  std::vector<at::Tensor> leaves;
  Cuts cuts = plain_call_cuts();
  std::optional<GradientsApart> apart;
  const auto learn = [&](const StepRecording& recording) {
    measurement = measurement_of(recording, options.name, leaves);
    for (const int32_t position : measuring_cuts(measurement->profile()))
      cuts.positions.push_back(static_cast<size_t>(position));
    apart.emplace(leaves);
  };
  check_backward(measure_step(runner, unknown_cuts(), learn), options.name);
  for (const auto i : c10::irange(options.steps)) {
    apart.reset();
    apart.emplace(leaves);
    StepLog log = measure_step(runner, cuts, [](const StepRecording&) {});
    check_backward(log, options.name);
    TORCH_CHECK(measurement->add_step(log), "[profile] '", options.name,
                "': expected each step to run the same ops, got others in step ", i + 1,
                ". Measure a function whose ops do not depend on data, or with data that makes "
                "them the same.");
  }
  StepProfile profile = measurement->profile();
  if (const std::string caution = profile.caution(); !caution.empty())
    TORCH_WARN("[profile] '", options.name, "': ", caution, ".");
  return profile;
}

}  // namespace remat
