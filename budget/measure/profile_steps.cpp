// SPDX-License-Identifier: BSD-3-Clause

// The steps that are measured, one after the other.
#include <remat/budget/profile.h>

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/memory_plan/measuring_cuts.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>

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

/// A node that runs twice, or that backward has made, is not in a profile.
void check_backward(const StepLog& step, const std::string& name) {
  TORCH_CHECK_VALUE(!step.nodes.empty(), "[profile] '", name,
                    "': expected backward to run, got a step in which no node did. Call backward() "
                    "on what the function returns.");
  std::unordered_set<uint64_t> seen;
  for (const StepLog::Node& node : step.nodes) {
    if (node.sequence == StepLog::kNoSequence) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(node.sequence < step.backward_node, "[profile] '", name,
                                "': expected backward to run what "
                                "the forward has made, got ",
                                node.name,
                                " that a backward has made (create_graph). Steps "
                                "that are differentiated twice are not planned.");
    TORCH_CHECK_NOT_IMPLEMENTED(
        seen.insert(node.sequence).second, "[profile] '", name,
        "': expected backward to run each node once, got ", node.name,
        " twice (retain_graph). Run one backward from the sum of the losses.");
  }
}

/// One forward of which nothing is kept. A tape that is cut, into one segment, keeps all records.
std::unique_ptr<StepMeasurement> measure_forward(StepRunner& runner, const std::string& name) {
  StepRecording recording(/*undoes_writes=*/true);
  const Held held(runner);
  Cuts nothing;
  nothing.keep.emplace();
  runner.forward(nothing, recording);
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
  check_thread(options.name);
  const auto measurement = measure_forward(runner, options.name);
  Cuts cuts;
  for (const int32_t position : measuring_cuts(measurement->profile()))
    cuts.positions.push_back(static_cast<size_t>(position));
  for (const auto i : c10::irange(options.steps + 1)) {  // the first one warms up
    const GradientsApart apart(measurement->leaves());
    const StepLog log = measure_step(runner, cuts);
    check_backward(log, options.name);
    TORCH_CHECK(i == 0 || measurement->add_step(log), "[profile] '", options.name,
                "': expected each step to run the same ops, got others in step ", i,
                ". Measure a function whose ops do not depend on data, or with data that makes "
                "them the same.");
  }
  return measurement->profile();
}

}  // namespace remat
