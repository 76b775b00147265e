// SPDX-License-Identifier: BSD-3-Clause

// auto_checkpoint(options)(fn)(args...): fn within a budget of memory, planned while it trains.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <remat/backend/checkpoint.h>
#include <remat/budget/step_runner.h>
#include <remat/memory_plan/memory_plan.h>
#include <remat/offload/offload_engine.h>
#include <remat/tape/cuts.h>
#include <remat/tape/export.h>

namespace remat {

struct AutoCheckpointOptions {
  /// Names the function in messages.
  std::string name{};

  /// "8GB", "60%", "fraction:0.5", "device:16GB": see MemoryBudget. Empty: what the environment
  /// variable REMAT_MEMORY_BUDGET says.
  std::string memory_budget{};

  /// If the file is there its plan is used, and nothing is measured; a plan for other ops raises.
  /// Else the first plan is saved there. Empty: no file.
  std::string plan_file{};

  /// That are measured before a plan is made.
  int steps = 3;

  /// Told in a line what happens: measuring, planned, other steps met. Null: nobody is told.
  std::function<void(const std::string&)> progress{};

  /// Told once that steps run other ops than those that were measured. Null: LibTorch's warnings.
  std::function<void(const std::string&)> warn{};

  /// For processes whose steps must have the same cuts. Given what this one has decided after a
  /// step that was measured, "" for nothing yet, it returns what to follow: that, or what another
  /// process was given after the same step. What it throws the step throws. Null: each decides for
  /// itself.
  std::function<std::string(const std::string&)> agree{};

  /// What plans may move their kept results to, and back before backward needs them. Its speed is
  /// measured when auto_checkpoint() is called; the steps that are measured move nothing. Null:
  /// nothing is moved.
  std::shared_ptr<OffloadEngine> offload{};
};

/// What a step is recognised by before it runs: its arguments, grad mode's settings and autocast.
struct REMAT_API StepSignature {
  uint64_t kind = 0;  ///< Of all but sizes
  std::vector<int64_t> sizes{};

  /// `mode`: what else makes the function run other ops, if the caller knows it.
  static StepSignature of(c10::ArrayRef<at::Tensor> arguments, int64_t mode = 0);

  /// True if a plan for this one serves the other: no size of that is larger.
  bool covers(const StepSignature& other) const;
  bool operator==(const StepSignature&) const = default;
};

/// The state behind auto_checkpoint(): measures real steps, plans, and runs the others as planned.
///
/// The first call runs the function once more, undoes what that has written and drops it: now the
/// ops are known. That step and the next ones run on a tape that is cut where little passes, while
/// ops, nodes of backward and memory are written down; then a plan is made. Arguments of other
/// sizes run by a plan for larger ones, or are measured. From the first op that the plan does not
/// know a step is cut every so many bytes; it is measured when the next one comes. At most
/// kMostVariants plans are alive, and kMostMeasurements are begun.
///
/// Steps of many threads may run at once; one is measured at a time in the process.
class REMAT_API AutoCheckpoint {
 public:
  static constexpr size_t kMostVariants = 8;
  static constexpr int kMostMeasurements = 32;

  /// Throws ValueError for options that cannot be; and for a plan file made with another torch.
  explicit AutoCheckpoint(AutoCheckpointOptions options);
  AutoCheckpoint(const AutoCheckpoint&) = delete;
  AutoCheckpoint& operator=(const AutoCheckpoint&) = delete;
  ~AutoCheckpoint();

  /// Runs the forward of a step, which then holds what the function has returned. In grad mode.
  /// Inside of other regions it is a plain call. Throws what the function throws;
  /// NotImplementedError for what no tape can replay, naming the op; ValueError if no plan is
  /// within the budget.
  void run(StepForward& step, const StepSignature& signature);

  /// The plan that ran last, else the one that was made last; none while the first is measured.
  std::optional<MemoryPlan> plan() const;

  /// "2 of 3 steps are measured ...", while there is no plan.
  std::string why_no_plan() const;

  /// What to do about an op that no tape can replay, for errors that others raise.
  std::string advice() const;

  const AutoCheckpointOptions& options() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

namespace detail {

/// One call of a C++ function.
template <class Result>
class AutoCall final : public StepForward {
 public:
  AutoCall(const AutoCheckpointOptions& options,
           std::function<Result(const CheckpointOptions*)> call)
      : options_(options), call_(std::move(call)) {}

  void forward(const Cuts& cuts, StepRecording* /*recording*/) override {
    if (cuts.empty()) {
      result_.emplace(call_(nullptr));
      return;
    }
    CheckpointOptions options{.name = options_.name, .replay = ReplayEngine::kTape, .cuts = cuts};
    if (cuts.offload) options.offload_store = options_.offload;
    result_.emplace(call_(&options));
  }
  void drop() noexcept override { result_.reset(); }
  Result take() { return std::move(*result_); }

 private:
  const AutoCheckpointOptions& options_;
  std::function<Result(const CheckpointOptions*)> call_;
  std::optional<Result> result_;
};

}  // namespace detail

/// What auto_checkpoint(options)(fn) returns. Copies share what was measured and planned.
template <class F>
class AutoCheckpointed {
 public:
  AutoCheckpointed(std::shared_ptr<AutoCheckpoint> planned, F fn)
      : planned_(std::move(planned)), fn_(std::move(fn)) {}

  /// As Checkpointed's.
  template <class... Args>
  auto operator()(Args&&... args) const {
    std::tuple<std::decay_t<Args>...> kept(std::forward<Args>(args)...);
    F fn = fn_;
    using Result = detail::CallResult<F, std::decay_t<Args>...>;
    if (!detail::records_regions()) return Result(detail::call(fn, kept));
    detail::AutoCall<Result> call(planned_->options(), [&](const CheckpointOptions* options) {
      if (!options) return Result(detail::call(fn, kept));
      return Result(
          std::apply([&](const auto&... arg) { return checkpoint(*options)(fn)(arg...); }, kept));
    });
    std::vector<at::Tensor> tensors;
    std::apply(
        [&](const auto&... arg) {
          const auto add = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
          (detail::visit_tensors(arg, add), ...);
        },
        kept);
    planned_->run(call, StepSignature::of(tensors));
    return call.take();
  }

  /// Throws RuntimeError while the first steps are measured.
  MemoryPlan plan() const {
    std::optional<MemoryPlan> plan = planned_->plan();
    TORCH_CHECK(plan, "[auto_checkpoint] '", planned_->options().name,
                "': expected a plan, got none yet: ", planned_->why_no_plan(), ".");
    return *std::move(plan);
  }

 private:
  std::shared_ptr<AutoCheckpoint> planned_;
  F fn_;
};

/// What auto_checkpoint(options) returns: waits for the function.
class AutoCheckpointBuilder {
 public:
  explicit AutoCheckpointBuilder(AutoCheckpointOptions options) : options_(std::move(options)) {}

  /// Takes what checkpoint()'s builder takes.
  template <class F>
  auto operator()(F&& fn) const {
    return AutoCheckpointed<std::decay_t<F>>(std::make_shared<AutoCheckpoint>(options_),
                                             std::forward<F>(fn));
  }

 private:
  AutoCheckpointOptions options_;
};

/// auto_checkpoint({.name = "model", .memory_budget = "8GB"})(model): the function that it returns
/// is made once and called in each step. Its steps take no more than the budget above what is alive
/// when they begin; gradients are bitwise those of plain. Source: pytorch/pytorch#194696.
inline AutoCheckpointBuilder auto_checkpoint(AutoCheckpointOptions options = {}) {
  return AutoCheckpointBuilder(std::move(options));
}

}  // namespace remat
