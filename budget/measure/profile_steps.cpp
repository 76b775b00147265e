// SPDX-License-Identifier: BSD-3-Clause

// The steps that profile() measures, one after the other.
#include <remat/budget/profile.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <remat/budget/pending_step.h>
#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/planner/measuring_cuts.h>

namespace remat {
namespace {

/// While alive, replaces the .grad of `leaves` by zeros; restores it when destroyed. Other leaves
/// that backward reaches have no .grad meanwhile: arguments that a function returns unchanged, and
/// weights that only the loss uses. Only one object in the process is active at a time.
class GradientsApart {
 public:
  /// Adds to `leaves`, which must outlive this object, the leaves that backward reaches.
  explicit GradientsApart(std::vector<at::Tensor>& leaves);
  ~GradientsApart();

 private:
  static std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction& node);
  void add(const at::Tensor& leaf);

  std::mutex mutex_;  // backward's threads call add()
  std::vector<at::Tensor>& leaves_;
  std::vector<at::Tensor> gradients_;
  at::CallbackHandle callback_ = 0;
};

std::atomic<GradientsApart*> current{nullptr};

GradientsApart::GradientsApart(std::vector<at::Tensor>& leaves) : leaves_(leaves) {
  for (const at::Tensor& leaf : leaves_) {
    at::Tensor zeros = leaf.grad().defined() ? at::zeros_like(leaf.grad()) : at::Tensor();
    gradients_.push_back(std::exchange(leaf.mutable_grad(), std::move(zeros)));
  }
  GradientsApart* none = nullptr;
  current.compare_exchange_strong(none, this);
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

GradientsApart::~GradientsApart() {
  at::removeCallback(callback_);
  GradientsApart* self = this;
  current.compare_exchange_strong(self, nullptr);
  for (const auto i : c10::irange(leaves_.size()))
    leaves_[i].mutable_grad() = std::move(gradients_[i]);
}

std::unique_ptr<at::ObserverContext> GradientsApart::before_node(
    const at::RecordFunction& /*node*/) {
  GradientsApart* const apart = current.load();
  const auto node = torch::autograd::get_current_node();
  const auto* const accumulates = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
  if (apart && accumulates) apart->add(accumulates->variable);
  return nullptr;
}

void GradientsApart::add(const at::Tensor& leaf) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_known = std::any_of(leaves_.begin(), leaves_.end(),
                                    [&](const at::Tensor& known) { return known.is_same(leaf); });
  if (is_known) return;
  leaves_.push_back(leaf);
  gradients_.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));
}

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
  TORCH_CHECK_VALUE(!step.backward.nodes.empty(), "[profile] '", name,
                    "': expected backward to run, got a step in which no node did. Call backward() "
                    "on what the function returns.");
  TORCH_CHECK_NOT_IMPLEMENTED(step.backward.later_node.empty(), "[profile] '", name,
                              "': expected backward to run what the forward has made, got ",
                              step.backward.later_node,
                              " that a backward has made (create_graph). Steps that are "
                              "differentiated twice are not planned.");
  const std::string fault = step.backward.fault();
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

/// Measures the step's structure. Sets `leaves` to the outside tensors that need a gradient.
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
StepLog measure_step(StepRunner& runner, const std::string& name,
                     std::shared_ptr<const PlannedCuts> cuts, AfterForward&& after_forward) {
  StepRecording recording;
  const std::shared_ptr<void> dropped_at_end(nullptr, [&](void*) { runner.drop(); });
  runner.forward({.name = name, .replay = ReplayEngine::kTape, .plan = std::move(cuts)},
                 &recording);
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
  PendingStep::here().cancel();
  std::unique_ptr<StepMeasurement> measurement;
  std::vector<at::Tensor> leaves;
  const auto cuts = std::make_shared<PlannedCuts>();
  std::unique_ptr<GradientsApart> apart;
  const auto learn = [&](const StepRecording& recording) {
    measurement = measurement_of(recording, options.name, leaves);
    for (const int32_t position : measuring_cuts(measurement->profile()))
      cuts->positions.push_back(static_cast<size_t>(position));
    apart = std::make_unique<GradientsApart>(leaves);
  };
  check_backward(measure_step(runner, options.name, StepMeasurement::first_cuts(), learn),
                 options.name);
  for (const auto i : c10::irange(options.steps)) {
    apart.reset();
    apart = std::make_unique<GradientsApart>(leaves);
    StepLog log = measure_step(runner, options.name, cuts, [](const StepRecording&) {});
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
