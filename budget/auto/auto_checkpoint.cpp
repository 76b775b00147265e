// SPDX-License-Identifier: BSD-3-Clause

// Chooses the steps that are measured, and the plans with which the other steps run.
#include <remat/budget/auto_checkpoint.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <remat/budget/memory_budget.h>
#include <remat/budget/pending_step.h>
#include <remat/engine/planned_cuts.h>
#include <remat/engine/scope.h>
#include <remat/inspect/allocation_listener.h>

#include "messages.h"
#include "plan_file.h"
#include "step_variants.h"

namespace remat {
namespace {

constexpr const char* kVariable = "REMAT_MEMORY_BUDGET";

std::string budget_text(const AutoCheckpointOptions& options) {
  if (!options.memory_budget.empty()) return options.memory_budget;
  const char* const text = std::getenv(kVariable);
  TORCH_CHECK_VALUE(text && *text, message_prefix(options.name),
                    "memory_budget: expected one, got none. Give it, or set ", kVariable, ".");
  return text;
}

/// If the budget is a share and no plan fits a variant, the variant is measured in up to kMostWaits
/// times options.steps steps, while other variants are measured whose larger budgets it may use.
constexpr int kMostWaits = 4;

OffloadTerms terms_of(const AutoCheckpointOptions& options) {
  if (!options.offload) return {};
  OffloadTerms terms = options.offload->terms();
  try {
    MemoryPlannerOptions{.offload = terms}.validate();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, message_prefix(options.name), error.what());
  }
  return terms;
}

}  // namespace

/// Owns the variants and guards them by its mutex. No lock is held while the function runs.
class AutoCheckpoint::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(AutoCheckpointOptions given)
      : options(std::move(given)),
        budget_(budget_text(options), message_prefix(options.name)),
        terms_(terms_of(options)),
        file_(options.plan_file, options.name),
        messages_(options) {
    TORCH_CHECK_VALUE(options.steps >= 1, message_prefix(options.name),
                      "steps: expected 1 or more, got ", options.steps, ".");
    if (file_.exists()) use_file();
  }

  void run(const Forward& forward, const StepSignature& signature) {
    if (Scope::current()) return forward(nullptr, nullptr);
    const bool in_backward = PendingStep::in_backward();
    if (in_backward) {
      spoil_pending();
    } else {
      end_pending();
      PendingStep::here().wait_for_others(this);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<StepVariant> variant = variants_.expected(signature);
    const bool is_of_other_file =
        !variant && first_ && first_->is_from_file && variants_.steps() == 0;
    const bool is_measured = !variant && !in_backward && variants_.may_measure();
    lock.unlock();
    if (is_of_other_file) messages_.warn_once(file_.other_step_warning());
    if (StepRecording* const recording = is_measured ? begin_unknown() : nullptr)
      return run_unknown(forward, signature, *recording);
    lock.lock();
    if (!variant) variant = variants_.any(signature);
    lock.unlock();
    if (!variant) return call(forward, StepMeasurement::first_cuts(), nullptr);
    run_variant(forward, variant, signature);
  }

  std::optional<MemoryPlan> plan() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return latest_ ? latest_->plan() : std::nullopt;
  }

  std::string why_no_plan() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_) return fault_.empty() ? "no step has run in grad mode" : fault_;
    if (!first_->limit().empty()) return "none fits: " + first_->limit();
    if (first_->saves_nothing()) return "nothing is saved for backward, or it fits as it is";
    const std::string fault = fault_.empty() ? "" : "; the last one does not count: " + fault_;
    if (first_->is_given_up()) return "measuring was given up" + fault;
    return c10::str(first_->measured(), " of ", options.steps,
                    " steps have been measured; the last one counts when the next one begins",
                    fault);
  }

  std::string advice() const {
    return message_prefix(options.name) +
           "steps within a budget run again from a tape. What no tape can replay belongs outside: "
           "give auto_checkpoint the parts of the model around it. Other options of replay are "
           "checkpoint()'s.";
  }

  const AutoCheckpointOptions options;

 private:
  /// Ends the previous step, if this thread has measured it.
  void end_pending() {
    StepLog log;
    auto variant = std::static_pointer_cast<StepVariant>(PendingStep::here().take(this, log));
    const bool has_backward = !log.backward.nodes.empty();
    std::unique_lock<std::mutex> lock(mutex_);
    if (variant && !has_backward) fault_ = "no backward came on the thread of its forward";
    const std::shared_ptr<StepVariant> begun = std::exchange(begun_, nullptr);
    lock.unlock();
    if (!variant && options.agree) variant = begun;
    if (!variant || (!options.agree && !has_backward)) return;
    const std::string warning = add_measured(variant, log);
    messages_.send_queued();
    if (!warning.empty()) messages_.warn_once(warning);
    if (const std::optional<MemoryPlan> made = plan())
      messages_.caution_once(made->profile->caution());
  }

  /// Discards the previous step, because its function is called again during a backward.
  void spoil_pending() {
    if (!PendingStep::here().spoil(this)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    fault_ = "its function was called again while a backward ran";
  }

  /// Adds a measured step to its variant. Returns the warning to give, or "".
  std::string add_measured(const std::shared_ptr<StepVariant>& variant, StepLog& log) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!variant->wants_measuring()) return "";
    const bool is_there = !log.backward.nodes.empty();
    const std::string fault = is_there ? variant->add(log, budget_) : "";
    if (!fault.empty()) {
      fault_ = fault;
      messages_.queue("a step that was measured does not count: " + fault);
      if (variant->is_given_up())
        return "measuring is given up, and steps stay as they were measured: " + fault;
    }
    std::optional<StepDecision> decision;
    if (is_there && fault.empty()) decision = decide(*variant);
    if (options.agree) decision = agreed(*variant, std::move(decision), lock);
    return decision ? take(variant, *std::move(decision)) : "";
  }

  /// This process's decision; nullopt if more steps must be measured. A budget that is a share is
  /// raised to the largest budget of all variants.
  std::optional<StepDecision> decide(const StepVariant& variant) const {
    const bool is_enough = variant.measured() >= options.steps || latest_;
    if (!is_enough) return std::nullopt;
    StepDecision decision = variant.decide(
        budget_, budget_.is_share() ? variants_.largest_budget() : 0, terms_, options.name);
    const bool may_get_more = budget_.is_share() &&
                              variant.measured() < kMostWaits * options.steps &&
                              variants_.measures_another(variant, options.steps);
    if (!decision.limit.empty() && may_get_more) return std::nullopt;
    return decision;
  }

  /// The decision that all processes follow. Releases `lock` while they agree.
  std::optional<StepDecision> agreed(const StepVariant& variant, std::optional<StepDecision> own,
                                     std::unique_lock<std::mutex>& lock) const {
    const std::string text = text_of(own);
    lock.unlock();
    const std::string found = options.agree(text);
    lock.lock();
    if (!variant.wants_measuring()) return std::nullopt;  // another thread has decided first
    if (found == text) return own;
    try {
      return decision_from(found, variant.profile(), terms_);
    } catch (const std::logic_error& error) {
      TORCH_CHECK_VALUE(false, message_prefix(options.name),
                        "plan of another rank: expected one for the ops of this rank's step, got ",
                        error.what(),
                        ". Give all ranks of sharded weights steps of the same ops, or give "
                        "auto_checkpoint modules inside of those that are sharded.");
    }
  }

  /// Applies the decision. Returns the warning to give, or "".
  std::string take(const std::shared_ptr<StepVariant>& variant, StepDecision decision) {
    variant->take(std::move(decision));
    if (variant->saves_nothing())
      messages_.queue("fits as it is, and takes less so than by a plan");
    if (!variant->plan()) return "";
    messages_.queue(plan_message(*variant->plan()));
    latest_ = variant;
    const std::string fault = variant == first_ ? file_.save(*variant, budget_) : "";
    return fault.empty() ? latest_->plan()->why_nothing_moves() : fault;
  }

  /// Begins to measure a step of an unknown kind; null if that is not possible now.
  StepRecording* begin_unknown() {
    if (StepRecording* const recording = PendingStep::here().begin(shared_from_this(), nullptr))
      return recording;
    const bool is_profiled = AllocationListener::is_profiled();
    const std::string fault = is_profiled
                                  ? "no step is measured while torch's profiler runs on its "
                                    "thread, so the budget is not kept"
                                  : "other functions' steps are being measured";
    std::unique_lock<std::mutex> lock(mutex_);
    const bool is_known = std::exchange(fault_, is_profiled || !first_ ? fault : fault_) == fault;
    lock.unlock();
    if (!is_profiled || is_known) return nullptr;
    messages_.progress(fault);
    messages_.warn_once(fault);
    return nullptr;
  }

  /// Runs a step of an unknown kind; its kind is known when the forward has ended.
  void run_unknown(const Forward& forward, const StepSignature& signature,
                   StepRecording& recording) {
    try {
      call(forward, StepMeasurement::first_cuts(), &recording);
      PendingStep::here().end_forward();
      const auto variant = advised([&] { return add_variant(signature, recording); });
      messages_.send_queued();
      begin_kind(signature, variant);
    } catch (...) {
      PendingStep::here().cancel();
      throw;
    }
  }

  /// Returns the kind of the step whose forward has ended. For a step that cannot be planned,
  /// throws if it is the first one, and otherwise returns null.
  std::shared_ptr<StepVariant> add_variant(const StepSignature& signature,
                                           const StepRecording& recording) {
    std::unique_ptr<StepMeasurement> measurement;
    try {
      measurement = StepMeasurement::of(options.name, recording.log());
    } catch (const c10::NotImplementedError& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_) throw;
      variants_.add_unplanned();
      messages_.queue(std::string("a step is not planned: ") + error.what_without_backtrace());
      return nullptr;
    }
    const auto variant = std::make_shared<StepVariant>(signature, std::move(measurement), budget_);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto known = variants_.add(variant);
    if (!first_) first_ = known;
    if (known == variant && variant->wants_measuring())
      messages_.queue(measuring_message(*variant->cuts(), options.steps));
    return known;
  }

  /// Notes the kind of a step that ran as unknown. `variant`: null if the step cannot be planned.
  void begin_kind(const StepSignature& signature, const std::shared_ptr<StepVariant>& variant) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!variant) return PendingStep::here().cancel();
    begin(variant);
    begun_ ? PendingStep::here().set_subject(variant) : PendingStep::here().cancel();
    variant->is_from_file = false;
    variants_.came(signature, variant);
  }

  /// Notes that a step begins to run as `variant`. Throws ValueError if no plan of the variant is
  /// within the budget. Call this under the lock.
  void begin(const std::shared_ptr<StepVariant>& variant) {
    TORCH_CHECK_VALUE(variant->limit().empty(), variant->limit());
    variants_.use(*variant);
    if (variant->plan()) latest_ = variant;
    begun_ = variant->wants_measuring() ? variant : nullptr;
  }

  void run_variant(const Forward& forward, const std::shared_ptr<StepVariant>& variant,
                   const StepSignature& signature) {
    std::unique_lock<std::mutex> lock(mutex_);
    begin(variant);
    const bool is_measured = begun_ != nullptr;
    const auto cuts = variant->cuts() ? std::make_shared<PlannedCuts>(*variant->cuts()) : nullptr;
    lock.unlock();
    std::optional<TapeDifference> difference;
    if (cuts) cuts->differs = [&](const TapeDifference& found) { difference = found; };
    StepRecording* const recording =
        is_measured ? PendingStep::here().begin(shared_from_this(), variant) : nullptr;
    try {
      call(forward, cuts, recording);
    } catch (...) {
      if (recording) PendingStep::here().cancel();
      throw;
    }
    if (recording) difference ? PendingStep::here().cancel() : PendingStep::here().end_forward();
    lock.lock();
    if (difference && variant->is_from_file && variants_.steps() == 1) {
      lock.unlock();
      file_.refuse(*difference);
    }
    const auto kind = difference ? variants_.find(*variant, *difference) : variant;
    if (recording && !kind) variant->add_failure();
    variant->is_from_file = false;
    variants_.came(signature, kind);
    lock.unlock();
    if (difference) report_difference(*difference, cuts->rest_bytes, kind != nullptr);
  }

  /// Reports that a step has left its plan. `is_known`: a step of its kind has been measured.
  void report_difference(const TapeDifference& difference, size_t rest_bytes, bool is_known) {
    const std::string line =
        c10::str("a step is not like the one that was ",
                 is_known ? "expected: " : "measured: ", difference.str(),
                 ". From there on it was cut every ", rest_bytes, " bytes",
                 is_known ? "." : "; such steps are measured when they come again.");
    messages_.progress(line);
    if (!is_known) messages_.warn_once(line);
  }

  /// Calls the function as a region with these cuts; calls it without a region if `cuts` is null.
  void call(const Forward& forward, std::shared_ptr<const PlannedCuts> cuts,
            StepRecording* recording) const {
    const bool moves = cuts && cuts->offload;
    const CheckpointOptions region{.name = options.name,
                                   .replay = ReplayEngine::kTape,
                                   .plan = std::move(cuts),
                                   .offload_store = moves ? options.offload : nullptr};
    advised([&] { forward(region.plan ? &region : nullptr, recording); });
  }

  /// Returns call(). If that raises because no tape can replay an op, adds advice to the error.
  template <class Call>
  std::invoke_result_t<Call> advised(Call&& call) const {
    try {
      return call();
    } catch (c10::NotImplementedError& error) {
      error.add_context(advice());
      throw;
    }
  }

  void use_file() {
    first_ = latest_ = file_.load(budget_, terms_);
    variants_.add(latest_);
    messages_.progress("plan of " + file_.path() + ": " + plan_message(*latest_->plan()));
  }

  const MemoryBudget budget_;
  const OffloadTerms terms_;  // without places, nothing is offloaded
  const PlanFile file_;
  Messages messages_;
  mutable std::mutex mutex_;
  StepVariants variants_;
  std::shared_ptr<StepVariant> first_;   // variant of the first step, or of the plan file
  std::shared_ptr<StepVariant> latest_;  // last variant that ran with a plan or got one, or null
  std::shared_ptr<StepVariant> begun_;   // variant of the last step if it is to be measured
  std::string fault_;                    // fault of the last step that did not count
};

AutoCheckpoint::AutoCheckpoint(AutoCheckpointOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}

AutoCheckpoint::~AutoCheckpoint() {
  StepLog unfinished;
  PendingStep::here().take(state_.get(), unfinished);
}

void AutoCheckpoint::run(const Forward& forward, const StepSignature& signature) {
  const std::shared_ptr<State> alive = state_;
  alive->run(forward, signature);
}

std::optional<MemoryPlan> AutoCheckpoint::plan() const {
  return state_->plan();
}

std::string AutoCheckpoint::why_no_plan() const {
  return state_->why_no_plan();
}

std::string AutoCheckpoint::advice() const {
  return state_->advice();
}

const AutoCheckpointOptions& AutoCheckpoint::options() const {
  return state_->options;
}

}  // namespace remat
