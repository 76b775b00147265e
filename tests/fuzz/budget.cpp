// SPDX-License-Identifier: BSD-3-Clause

// Runs random programs within random budgets.
#include "fuzz/budget.h"

#include <c10/core/AutogradState.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/budget/plan_cuts.h>
#include <remat/budget/profile.h>
#include <remat/engine/planned_cuts.h>
#include <remat/engine/region.h>
#include <remat/offload/offload_engine.h>
#include <remat/planner/memory_planner.h>
#include <remat/remat.h>
#include "offload/virtual_link.h"

#include "fuzz/device.h"
#include "fuzz/machine.h"
#include "fuzz/plain_step.h"
#include "support/silence.h"

namespace remat::fuzz {
namespace {

constexpr const char* kPlanned = "planned";
constexpr const char* kChanged = "planned, then run with other ops";
constexpr const char* kMoved = "planned with a store, which moved something";
constexpr const char* kAuto = "trained with auto_checkpoint";
constexpr const char* kAutoChanged = "trained with auto_checkpoint, some steps with other ops";
constexpr const char* kInfeasible = "planned, and the budget was below the least";
constexpr const char* kAutoInfeasible = "auto_checkpoint refused the budget";
constexpr const char* kAutoMeasures = "auto_checkpoint made no plan";
constexpr const char* kNoGradient = "the loss needs no gradient";
constexpr const char* kRaises = "plain raises";
constexpr const char* kNotTaped = "refused: no tape can replay it";
constexpr const char* kNotMeasured = "refused: [profile]";
constexpr const char* kDirty = "refused: a Function marks dirty what crosses a cut";

/// Few budgets and small programs, since planning would take most of the time otherwise.
constexpr MemoryPlannerOptions kPlanning = {.grid = 4, .evaluations = 150};

constexpr uint64_t kOtherSeeds = 0x9e3779b97f4a7c15;
constexpr uint64_t kStoreSeeds = 0xd1b54a32d192ed03;  // a store changes no program
constexpr int kAutoSteps = 6;

using Function = std::function<Tensors(const Tensors&)>;

/// Place where the loss is computed, and whether the function's results stay alive.
enum class Loss { kInside, kInsideWithOutputs, kOutside, kOutsideDropped, kCount };

/// Training steps of one program, with its own parameters and inputs.
class Training {
 public:
  Training(Program program, Loss loss)
      : program_(std::move(program)),
        loss_(loss),
        machine_(program_, Mode::kPlain, sizes_),
        inputs_(machine_.make_inputs()) {}

  const Tensors& inputs() const { return inputs_; }
  auto inputs_with_gradient() const {
    return std::count_if(inputs_.begin(), inputs_.end(),
                         [](const at::Tensor& input) { return input.requires_grad(); });
  }

  /// Later steps run `program`, which has as many inputs.
  void become(const Program& program) { program_ = program; }

  Tensors operator()(const Tensors& inputs) {
    const Silence silence;
    Tensors outputs = machine_.forward(inputs);
    if (loss_ == Loss::kInside) return {loss_of(outputs)};
    if (loss_ == Loss::kInsideWithOutputs) outputs.insert(outputs.begin(), loss_of(outputs));
    return outputs;
  }

  /// Runs the backward of the function's results. Returns false if they need no gradient.
  bool backward(Tensors& results) const {
    const bool is_inside = loss_ == Loss::kInside || loss_ == Loss::kInsideWithOutputs;
    const at::Tensor loss = is_inside ? results[0] : loss_of(results);
    if (loss_ == Loss::kOutsideDropped) results.clear();
    if (!loss.requires_grad()) return false;
    loss.backward();
    return true;
  }

  void forget_gradients() const {
    for (const at::Tensor& leaf : leaves()) leaf.mutable_grad() = at::Tensor();
  }

  /// Copies the state that a step leaves behind: gradients, parameters and buffers.
  void copy_state(Tensors& results) const {
    for (const at::Tensor& leaf : leaves()) copy_to(results, {leaf.grad()});
    copy_to(results, inputs_);
    copy_to(results, machine_.buffers());
  }

 private:
  Tensors leaves() const {
    Tensors leaves = machine_.weights();
    for (const at::Tensor& input : inputs_) {
      if (input.requires_grad()) leaves.push_back(input);
    }
    return leaves;
  }

  Program program_;
  const Loss loss_;
  TapeSizes sizes_;
  Machine machine_;
  Tensors inputs_;
};

/// Steps for profile_steps().
class TrainingRunner final : public StepRunner {
 public:
  explicit TrainingRunner(Training& training) : training_(training) {}

  void forward(const CheckpointOptions& options, StepRecording* /*recording*/) override {
    results_ = checkpoint(options)(std::ref(training_))(training_.inputs());
  }
  void backward() override { training_.backward(results_); }
  void drop() noexcept override { results_.clear(); }

 private:
  Training& training_;
  Tensors results_;
};

struct StepResult {
  Tensors tensors{};
  int64_t peak_bytes = 0;
  bool has_backward = false;
};

StepResult train(const Training& training, const Function& function) {
  training.forget_gradients();
  const Silence silence;
  StepResult step;
  Tensors results;
  {
    const MemoryMeter meter;
    results = function(training.inputs());
    step.has_backward = training.backward(results);
    step.peak_bytes = meter.peak_bytes();
  }
  copy_to(step.tensors, results);
  training.copy_state(step.tensors);
  to_host(step.tensors);
  return step;
}

/// A program and everything that is done with it.
struct Task {
  Program program{};
  Program other{};            // nearly the same as `program`
  std::vector<bool> steps{};  // true where the step runs `other`
  Loss loss = Loss::kInside;
  bool is_auto = false;

  bool changes() const { return std::find(steps.begin(), steps.end(), true) != steps.end(); }
  bool has(Op op) const {
    return any_step(program.body, [op](const Step& step) { return step.op == op; }) ||
           any_step(other.body, [op](const Step& step) { return step.op == op; });
  }
};

std::string words_of(const Task& task) {
  constexpr std::array kLosses = {"inside", "inside, with outputs", "outside, outputs held",
                                  "outside, outputs dropped"};
  std::string text = c10::str(task.is_auto ? "auto_checkpoint" : "plan", ", loss ",
                              kLosses[static_cast<size_t>(task.loss)], ", steps");
  for (const bool is_other : task.steps) text += is_other ? " changed" : " same";
  return text;
}

std::string words_of(const StepCuts& cuts) {
  std::string text = c10::str("cuts at ", cuts.positions, ", keeps");
  for (const KeptResult& kept : cuts.keep)
    text +=
        c10::str(" ", kept.record, ".", kept.result, kept.policy == Policy::kOffload ? "!" : "");
  for (const auto& [first, end] : cuts.groups) text += c10::str(", group ", first, " to ", end);
  return text;
}

std::string words_of(const OffloadTerms& terms) {
  if (terms.places.empty()) return "";
  return c10::str("; a store of ", terms.min_bytes, " bytes or more, ", terms.max_leaving_bytes,
                  " on their way, ", terms.prefetch_bytes, " ahead");
}

void replace(Block& block, Op op, Op other) {
  for (Step& step : block.steps) {
    if (step.op == op) step.op = other;
    if (!step.block.empty()) replace(step.block[0], op, other);
  }
}

/// Adds a result that needs a gradient.
void add_weight(Block& body) {
  size_t values = body.inputs;
  for (const Step& step : body.steps) values += result_count(step);
  body.steps.push_back({.op = Op::kWeight, .a = body.results[0], .b = body.results[0]});
  body.results.push_back(values);
}

Task choose_task(const Program& program, Choices& choose) {
  Task task{.program = plain_step_of(program)};
  task.is_auto = choose.one_in(4);
  Block& body = task.program.body;
  // Hooks on arguments would be added again each time the function is called again.
  if (task.is_auto) replace(body, Op::kHookLater, Op::kHook);
  // A tape cannot replay these ops, so most programs have none.
  for (const Op op : {Op::kInnerGrad, Op::kInnerBackward}) {
    if (choose.pick(8)) replace(body, op, Op::kSin);
  }
  if (choose.pick(8)) add_weight(body);
  task.other = changed(task.program, choose);
  task.loss = static_cast<Loss>(choose.pick(static_cast<size_t>(Loss::kCount)));
  const bool changes = choose.one_in(3);
  if (!task.is_auto) {
    task.steps = {false, changes};
    if (changes) task.steps.push_back(false);
    return task;
  }
  for (int i = 0; i < kAutoSteps; ++i) task.steps.push_back(changes && i > 1 && choose.one_in(2));
  return task;
}

/// All steps of a run, or the error of the first one that raised.
struct Steps {
  std::vector<StepResult> done{};
  std::string error{};
  at::Tensor drawn{};
};

/// Runs the steps of `task`; calls `after` at the end of each.
Steps run_steps(const Task& task, Training& training, const Function& function,
                const std::function<void(size_t, const StepResult&)>& after) {
  Steps steps;
  try {
    for (size_t i = 0; i < task.steps.size(); ++i) {
      training.become(task.steps[i] ? task.other : task.program);
      steps.done.push_back(train(training, function));
      if (after) after(i, steps.done.back());
    }
  } catch (const c10::Error& error) {
    steps.error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    steps.error = error.what();
  }
  steps.drawn = at::rand({2});
  return steps;
}

bool begins_with(const std::string& text, std::string_view words) {
  return text.compare(0, words.size(), words) == 0;
}

bool has_words(const std::string& text, std::string_view words) {
  return text.find(words) != text.npos;
}

/// Chooses a budget, sometimes below the least.
int64_t choose_budget(const MemoryPlanner& planner, Choices& choose) {
  const int64_t least = planner.frontier().front().peak_bytes;
  const int64_t plain = planner.profile().plain_peak_bytes;
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(choose.pick(static_cast<size_t>(std::max<int64_t>(count, 1))));
  };
  switch (choose.pick(8)) {
    case 0:
      return planner.budget_bytes("100%");
    case 1:
      return least;
    case 2:
      return least - 1;
    case 3:
      return below(plain);
    default:
      return least + below(plain - least);
  }
}

std::string choose_budget_text(Choices& choose) {
  switch (choose.pick(4)) {
    case 0:
      return c10::str(100 + choose.pick(4000), "B");
    case 1:
      return c10::str(20 + choose.pick(81), "%");
    default:
      return c10::str("fraction:", static_cast<double>(choose.pick(101)) / 100);
  }
}

/// Sometimes makes a store with small windows, whose copies end when somebody waits for them.
std::shared_ptr<OffloadEngine> choose_store(uint64_t seed) {
  Choices choose(seed ^ kStoreSeeds);
  if (choose.one_in(2)) return nullptr;
  const auto bytes = [&] { return static_cast<int64_t>(choose.pick(4) * choose.pick(64)); };
  // A link of a set speed copies with the CPU, and refuses tensors of a GPU.
  const auto memory =
      on_cuda() ? host_memory() : host_memory({.link = virtual_link({.gbps = 1}).link});
  return offload_engine({.memories = {memory},
                         .min_bytes = bytes() / 4,
                         .prefetch_bytes = bytes(),
                         .max_leaving_bytes = bytes()});
}

/// Plans by the store's limits, with a link so fast that plans move whatever they can.
MemoryPlannerOptions planning_for(const std::shared_ptr<OffloadEngine>& store) {
  MemoryPlannerOptions planning = kPlanning;
  if (!store) return planning;
  planning.evaluations *= 4;
  planning.offload = *store->limits();
  for (OffloadPlace& place : planning.offload.places) place.out_gbps = place.in_gbps = 1e3;
  return planning;
}

class BudgetCheck {
 public:
  BudgetCheck(const Program& program, Fault fault)
      : choose_(program.seed ^ kOtherSeeds),
        task_(choose_task(program, choose_)),
        fault_(fault),
        store_(choose_store(program.seed)) {}

  Verdict run() {
    {
      Training training(task_.program, task_.loss);
      plain_ = run_steps(task_, training, std::ref(training), nullptr);
    }
    if (plain_.error.empty() && !std::all_of(plain_.done.begin(), plain_.done.end(),
                                             [](const auto& step) { return step.has_backward; }))
      return {.note = kNoGradient};
    task_.is_auto ? run_auto() : run_plan();
    if (verdict_.failure.empty()) check_nothing_left();
    verdict_.raised = !plain_.error.empty();
    if (verdict_.raised && verdict_.failure.empty()) verdict_.note = kRaises;
    return verdict_;
  }

 private:
  void fail(std::string failure, std::string message) {
    if (!verdict_.failure.empty()) return;
    verdict_.failure = std::move(failure);
    verdict_.message = std::move(message) + "\n" + words_of(task_);
  }

  void run_plan() {
    Training measured(task_.program, task_.loss);
    const std::optional<StepProfile> profile = measure(measured);
    if (!profile) return;
    try {
      const MemoryPlanner planner(*profile, planning_for(store_));
      const int64_t budget = choose_budget(planner, choose_);
      if (budget < 0) return;
      Training training(task_.program, task_.loss);
      run_planned(training, planner, planner.plan(budget));
    } catch (const std::exception& error) {
      fail("the planner raises", error.what());
    }
  }

  std::optional<StepProfile> measure(Training& training) {
    try {
      TrainingRunner runner(training);
      StepProfile profile = profile_steps(runner, {.name = "measured", .steps = 1});
      if (!plain_.error.empty() && !task_.changes()) {
        // Some programs raise only in a later step.
        if (plain_.done.empty()) fail("plain raises, the profile does not", plain_.error);
      }
      // Times of such small steps are noise. With fixed times, each seed has one plan.
      for (StepRecord& record : profile.records)
        record.forward_us = record.replay_us = record.backward_us = 1;
      for (StepNode& node : profile.nodes) node.us = 1;
      profile.other_us = 0;
      return profile;
    } catch (const c10::Error& error) {
      note_refusal(error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail("profile raises what is no error of c10", error.what());
    }
    return std::nullopt;
  }

  /// Notes why a measurement was refused.
  void note_refusal(const std::string& error) {
    if (!plain_.error.empty()) {
      verdict_.note = kRaises;
    } else if (has_words(error, "expected what a tape can replay, got ") ||
               has_words(error, "expected ops that mark in their schema what they write")) {
      verdict_.note = kNotTaped;
    } else if (begins_with(error, "[profile]")) {
      verdict_.note = kNotMeasured;
    } else if (is_dirty(error)) {
      verdict_.note = kDirty;
    } else {
      fail("the measurement raises", error);
    }
  }

  bool is_dirty(const std::string& error) const {
    return task_.has(Op::kInPlaceFunction) && has_words(error, "got it modified in-place");
  }

  void run_planned(Training& training, const MemoryPlanner& planner, const MemoryPlan& plan) {
    const int64_t least = planner.frontier().front().peak_bytes;
    if (plan.least_budget_bytes != least) fail("the least budget is not the least peak", "");
    if (plan.feasible != (plan.budget_bytes >= least))
      fail("feasible is wrong", c10::str(plan.budget_bytes, " of at least ", least));
    if (plan.feasible && plan.predicted_peak_bytes > plan.budget_bytes)
      fail("the plan is above the budget",
           c10::str(plan.predicted_peak_bytes, " of ", plan.budget_bytes));
    // If a plan is infeasible, the plan for the least budget runs instead.
    verdict_.note = !plan.feasible             ? kInfeasible
                    : task_.changes()          ? kChanged
                    : plan.offloaded_bytes > 0 ? kMoved
                                               : kPlanned;
    const MemoryPlan runs = fault_ == Fault::kPeak
                                ? planner.plan(planner.frontier().back().peak_bytes)
                                : planner.plan(std::max(least, plan.budget_bytes));
    bool differs = false;
    const auto with_gradient = training.inputs_with_gradient();
    const std::shared_ptr<PlannedCuts> cuts = cuts_of(runs);
    cuts->differs = [&](const TapeDifference&) { differs = true; };
    const Function function = checkpoint({.name = c10::str("planned ", task_.program.seed),
                                          .preserve_rng = fault_ != Fault::kNumbers,
                                          .replay = ReplayEngine::kTape,
                                          .plan = cuts,
                                          .offload_store = store_})(std::ref(training));
    const auto after = [&](size_t i, const StepResult& step) {
      const bool left = std::exchange(differs, false);
      if (task_.steps[i]) return;
      // A step may leave its plan if the function's ops depend on what it has written, or if an
      // input that it has written now requires grad.
      const bool is_as_measured = training.inputs_with_gradient() == with_gradient;
      if (left && is_as_measured && !task_.has(Op::kBranch)) fail("a step leaves its plan", "");
      if (!left) check_peak(i, step.peak_bytes, plan);
    };
    compare(run_steps(task_, training, function, after));
  }

  void check_peak(size_t i, int64_t peak, const MemoryPlan& plan) {
    if (peak > plan.predicted_peak_bytes)
      fail("the peak is above the prediction",
           c10::str("step ", i, ": ", peak, " of ", plan.predicted_peak_bytes, ", budget ",
                    plan.budget_bytes, "; plain takes ", plain_.done[i].peak_bytes, ", of which ",
                    plan.profile->plain_peak_bytes, " were predicted at ", plan.peak_at, "; ",
                    words_of(plan.cuts), words_of(plan.offload)));
  }

  void run_auto() {
    Training training(task_.program, task_.loss);
    bool differs = false;
    int measured = 0;
    const auto progress = [&](const std::string& line) {
      measured += has_words(line, "measures ");
    };
    const auto planned =
        auto_checkpoint({.name = "auto",
                         .memory_budget = choose_budget_text(choose_),
                         .steps = 1 + static_cast<int>(choose_.pick(3)),
                         .progress = progress,
                         .warn = [&](const std::string&) { differs = true; }})(std::ref(training));
    const auto after = [&](size_t i, const StepResult& step) {
      const std::optional<MemoryPlan> plan = plan_of(planned);
      if (!plan) return;
      verdict_.note = task_.changes() ? kAutoChanged : kAuto;
      if (plan->predicted_peak_bytes > plan->budget_bytes) fail("the plan is above the budget", "");
      // Later steps may run other ops than the first or be measured: an input has a graph by then.
      if (!differs && measured <= 1 && !task_.changes()) check_peak(i, step.peak_bytes, *plan);
    };
    verdict_.note = kAutoMeasures;
    Steps steps = run_steps(task_, training, planned, after);
    if (begins_with(steps.error, "[auto_checkpoint] 'auto': memory_budget: expected ")) {
      verdict_.note = kAutoInfeasible;
      plain_.done.resize(std::min(plain_.done.size(), steps.done.size()));
      steps.error = plain_.error = "";
      steps.drawn = plain_.drawn;
    } else if (plain_.error.empty() && !steps.error.empty() && steps.done.empty()) {
      return note_refusal(steps.error);
    }
    compare(steps);
  }

  template <class Planned>
  static std::optional<MemoryPlan> plan_of(const Planned& planned) {
    try {
      return planned.plan();
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }

  void compare(const Steps& got) {
    if (plain_.error.empty() && is_dirty(got.error)) {
      verdict_.note = kDirty;
      return;
    }
    if (plain_.error.empty() != got.error.empty())
      return fail(got.error.empty() ? "only plain raises" : "raises",
                  got.error.empty() ? plain_.error : got.error);
    for (size_t i = 0; i < std::min(plain_.done.size(), got.done.size()); ++i) {
      const std::string found = difference(plain_.done[i].tensors, got.done[i].tensors);
      if (!found.empty()) return fail("differs", c10::str("step ", i, ": ", found));
    }
    if (!plain_.error.empty()) return;
    if (plain_.done.size() != got.done.size()) return fail("ran fewer steps", "");
    if (!difference({plain_.drawn}, {got.drawn}).empty()) fail("draws other numbers next", "");
  }

  void check_nothing_left() {
    if (!plain_.error.empty()) return;  // regions live as long as the exception's graph
    if (!live_regions().empty()) return fail("a region is left over", live_regions()[0]->label());
    const MemoryReport report = memory_report();
    if (report.bytes != 0 || !report.regions.empty()) fail("memory is left over", report.str());
    if (store_ && store_->stats().away_bytes != 0) fail("memory is left over in the store", "");
  }

  Choices choose_;
  Task task_;
  const Fault fault_;
  const std::shared_ptr<OffloadEngine> store_;
  Steps plain_;
  Verdict verdict_;
};

}  // namespace

bool is_planned(const char* note) {
  constexpr std::array kRan = {kPlanned, kChanged, kMoved, kAuto, kAutoChanged, kInfeasible};
  return std::find(kRan.begin(), kRan.end(), note) != kRan.end();
}

Verdict check_in_budget(const Program& program, Fault fault) {
  set_random_order(program.seed);
  forget_memory();
  // Otherwise threads add up some gradients in the order in which they finish.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(!on_cuda() || !may_race(program));
  Verdict verdict = BudgetCheck(program, fault).run();
  const std::string faults = device_faults();
  if (!faults.empty() && verdict.failure.empty()) verdict.failure = faults;
  return verdict;
}

}  // namespace remat::fuzz
