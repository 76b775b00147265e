// SPDX-License-Identifier: BSD-3-Clause

// auto_checkpoint(options)(fn)(args...): runs fn within a memory budget, planned while it trains.
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
#include <remat/engine/export.h>
#include <remat/offload/offload_engine.h>
#include <remat/planner/memory_plan.h>

namespace remat {

class StepRecording;

struct AutoCheckpointOptions {
  /// Name of the function in messages.
  std::string name{};

  /// "8GB", "60%", "fraction:0.5" or "device:16GB": see MemoryBudget. Empty: the value of the
  /// environment variable REMAT_MEMORY_BUDGET.
  std::string memory_budget{};

  /// Path of a plan. If the file exists, its plan is used and nothing is measured; if the plan was
  /// made for other ops, the step raises. Otherwise the first plan is saved there. Empty: no file.
  std::string plan_file{};

  /// Number of steps to measure before planning.
  int steps = 3;

  /// Called with a line of text when measuring begins, when a plan is made, and when a step leaves
  /// its plan. May be null.
  std::function<void(const std::string&)> progress{};

  /// Called once if steps run other ops than those that were measured. Null: a LibTorch warning.
  std::function<void(const std::string&)> warn{};

  /// For processes whose steps must have the same cuts. Called after each measured step with this
  /// process's decision ("" for none yet), the callback returns the decision to follow: its
  /// argument or another process's decision after the same step. The callback's exceptions pass
  /// through the step. Null: each process decides for itself.
  std::function<std::string(const std::string&)> agree{};

  /// Engine to which plans may offload kept results until backward needs them. The engine's speed
  /// is measured when auto_checkpoint() is called; steps that are measured offload nothing. Null:
  /// plans offload nothing.
  std::shared_ptr<OffloadEngine> offload{};
};

/// Key by which a step is recognised before it runs: arguments, grad mode settings and autocast.
struct REMAT_API StepSignature {
  uint64_t kind = 0;  ///< Hash of everything but sizes
  std::vector<int64_t> sizes{};

  /// `mode`: a number that differs when the caller knows that the function will run other ops (a
  /// module in training or evaluation mode).
  static StepSignature of(c10::ArrayRef<at::Tensor> arguments, int64_t mode = 0);

  /// True if a plan for this signature serves `other`: equal in kind, and no size of `other` is
  /// larger.
  bool covers(const StepSignature& other) const;
  auto operator<=>(const StepSignature&) const = default;
};

/// The state behind auto_checkpoint(): measures real steps, plans, and runs later steps as planned.
///
/// The function is called exactly once in each step. Ops, backward nodes and memory are logged in
/// the first steps: the first runs on a tape that is cut while it is recorded, the next ones on
/// tapes that are cut where few bytes cross (or by a plan, if such a step would exceed the budget).
/// Then the plan is made. Steps with arguments of other sizes run with a plan for larger ones, or
/// are measured. A step that meets an op its plan does not expect is cut every few MB from that op
/// on, and such steps are measured when they come again. At most kMostVariants plans are alive;
/// kMostMeasurements limits the number of measured steps.
///
/// Several threads may run steps at once; one step at a time is measured in the process.
class REMAT_API AutoCheckpoint {
 public:
  static constexpr size_t kMostVariants = 8;
  static constexpr int kMostMeasurements = 32;

  /// Throws ValueError for invalid options, and for a plan file made with another torch.
  explicit AutoCheckpoint(AutoCheckpointOptions options);
  AutoCheckpoint(const AutoCheckpoint&) = delete;
  AutoCheckpoint& operator=(const AutoCheckpoint&) = delete;
  ~AutoCheckpoint();

  /// Calls checkpoint(*options)(fn), or fn alone if `options` is null. If the step is measured,
  /// `recording` is not null, and recording->enter(module) says which module runs.
  using Forward = std::function<void(const CheckpointOptions* options, StepRecording* recording)>;

  /// Runs the forward of a step. Call it in grad mode. Inside a region it just calls `forward`.
  /// Throws what the function throws; NotImplementedError, naming the op, if no tape can replay it;
  /// ValueError if no plan is within the budget.
  void run(const Forward& forward, const StepSignature& signature);

  /// The plan that ran last, else the plan made last; nullopt while the first steps are measured.
  std::optional<MemoryPlan> plan() const;

  /// While there is no plan, the reason: "2 of 3 steps are measured ...".
  std::string why_no_plan() const;

  /// Returns advice to append to an error that another layer raises for an op that no tape can
  /// replay.
  std::string advice() const;

  const AutoCheckpointOptions& options() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// The function that auto_checkpoint(options)(fn) returns. Copies share measurements and plans.
template <class F>
class AutoCheckpointed {
 public:
  AutoCheckpointed(std::shared_ptr<AutoCheckpoint> planned, F fn)
      : planned_(std::move(planned)), fn_(std::move(fn)) {}

  /// Calls the function, like Checkpointed::operator().
  template <class... Args>
  auto operator()(Args&&... args) const {
    std::tuple<std::decay_t<Args>...> kept(std::forward<Args>(args)...);
    F fn = fn_;
    using Result = detail::CallResult<F, std::decay_t<Args>...>;
    if (!detail::records_regions()) return Result(detail::call(fn, kept));
    std::optional<Result> result;
    const auto forward = [&](const CheckpointOptions* options, StepRecording* /*recording*/) {
      const auto run = [&](const auto&... arg) { return checkpoint(*options)(fn)(arg...); };
      result.emplace(options ? Result(std::apply(run, kept)) : Result(detail::call(fn, kept)));
    };
    std::vector<at::Tensor> tensors;
    std::apply(
        [&](const auto&... arg) {
          const auto add = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
          (detail::visit_tensors(arg, add), ...);
        },
        kept);
    planned_->run(forward, StepSignature::of(tensors));
    return Result(std::move(*result));
  }

  /// The current plan. Throws RuntimeError while the first steps are measured.
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

/// Runs a function within a memory budget. Make the returned function once and call it each step:
///
///     auto step = remat::auto_checkpoint({.name = "model", .memory_budget = "8GB"})(model);
///
/// A step adds no more than the budget to the bytes that are alive when the step begins. The first
/// step of each kind is an exception, because it is cut while it runs, whatever the budget.
/// Gradients are bitwise those without remat. The function is one that checkpoint() takes. Source:
/// pytorch/pytorch#194696.
inline auto auto_checkpoint(AutoCheckpointOptions options = {}) {
  return [options = std::move(options)](auto&& fn) {
    return AutoCheckpointed<std::decay_t<decltype(fn)>>(std::make_shared<AutoCheckpoint>(options),
                                                        std::forward<decltype(fn)>(fn));
  };
}

}  // namespace remat
