// SPDX-License-Identifier: BSD-3-Clause

// Runs programs and their backward, plain and checkpointed.
#include "fuzz/run.h"

#include <c10/core/AutogradState.h>
#include <torch/torch.h>

#include <regex>

#include <remat/engine/replay_mismatch.h>

#include "fuzz/device.h"
#include "fuzz/helpers.h"
#include "support/same_bits.h"
#include "support/silence.h"

namespace remat::fuzz {

at::Tensor loss_of(const Tensors& outputs) {
  at::Tensor sum = at::zeros({}, main_device());
  for (const at::Tensor& output : outputs) sum = sum + (output * output).sum().to(main_device());
  return sum;
}

void copy_to(Tensors& results, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    results.push_back(tensor.defined() ? tensor.detach().clone() : at::Tensor());
}

std::string difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return c10::str("expected ", a.size(), " tensors, got ", b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i]))
      return c10::str("tensor ", i, " of ", a.size(),
                      " differs: results come first, then gradients, arguments, buffers, and what "
                      "is drawn next");
  }
  return "";
}

namespace {

using at::Tensor;

/// Sets, as long as it lives, whether autograd uses its own threads.
class Multithreading {
 public:
  explicit Multithreading(bool enabled) : was_(state().get_multithreading_enabled()) {
    state().set_multithreading_enabled(enabled);
  }
  Multithreading(const Multithreading&) = delete;
  Multithreading& operator=(const Multithreading&) = delete;
  ~Multithreading() { state().set_multithreading_enabled(was_); }

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  const bool was_;
};

constexpr size_t kErrorWords = 60;
constexpr size_t kSummaryLength = 90;

/// Runs the forward and `program.use`, and collects their results except the machine's state.
void run_checked(const Program& program, Machine& machine, Tensors& results) {
  const Tensors inputs = machine.make_inputs();
  const auto forward = [&](const Tensors& arguments) {
    const Silence silence;  // each thread needs its own
    const Tensors outputs = machine.forward(arguments);
    copy_to(results, outputs);
    return loss_of(outputs);
  };
  Tensors wanted = machine.weights();
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) wanted.push_back(input);
  }
  Tensor loss;
  const auto first = [&] { loss = forward(inputs); };
  program.use == Use::kForwardThread ? on_thread(first) : first();
  results.push_back(at::scalar_tensor(loss.requires_grad()));
  if (program.freed == Freed::kForGood) free_storages(machine.buffers());
  if (!loss.requires_grad()) return;
  if (program.freed == Freed::kUntilBackward) {
    for (const Tensors* tensors : {&inputs, &machine.weights(), &machine.buffers()})
      free_for_a_while(*tensors);
  }
  info(program.use)
      .run({.loss = loss,
            .wanted = wanted,
            .inputs = inputs,
            .results = results,
            .again = [&] { return forward(inputs); },
            .fresh = [&] { return forward(machine.make_inputs()); }});
  for (const Tensor& leaf : wanted) copy_to(results, {leaf.grad()});
  copy_to(results, inputs);
}

std::string first_words(const Outcome& outcome) {
  return outcome.error->message.substr(0, kErrorWords);
}

bool same(const Outcome& a, const Outcome& b) {
  // Where both raise, only the progress of the forward can be compared: a replay may raise before
  // an op that the plain run has run.
  if (a.error || b.error) return a.error && b.error && first_words(a) == first_words(b);
  return difference(a.tensors, b.tensors).empty();
}

/// Returns the error's first words, without numbers and names of ops.
std::string summary(const Outcome& outcome) {
  if (!outcome.error) return "ran";
  static const std::regex kDetails("[0-9]|aten::[A-Za-z_.]*");
  return std::regex_replace(outcome.error->message, kDetails, "").substr(0, kSummaryLength);
}

Outcome::Error::Type type_of(const c10::Error& error) {
  if (dynamic_cast<const ReplayMismatch*>(&error)) return Outcome::Error::Type::kMismatch;
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return Outcome::Error::Type::kRefused;
  return Outcome::Error::Type::kError;
}

}  // namespace

TapeSizes tape_sizes(const Program& program) {
  TapeSizes sizes;
  if (!any_step(program.body, [](const Step& step) { return !step.region.cuts.empty(); }))
    return sizes;
  const Silence silence;
  Machine machine(program, Mode::kRehearsal, sizes);
  try {
    machine.forward(machine.make_inputs());
  } catch (const c10::Error&) {  // the run itself will raise it too
    finish_backwards();
  }
  return sizes;
}

Outcome run(const Program& program, Mode mode) {
  TapeSizes sizes;
  if (mode != Mode::kPlain) sizes = tape_sizes(program);
  forget_memory();
  const Silence silence;
  const Multithreading multithreading(!program.one_thread);
  Machine machine(program, mode, sizes);
  Outcome outcome;
  try {
    run_checked(program, machine, outcome.tensors);
  } catch (const c10::Error& error) {
    outcome.error = {type_of(error), error.what_without_backtrace()};
    finish_backwards();  // the machine takes the graph apart
  }
  if (program.freed != Freed::kForGood) copy_to(outcome.tensors, machine.buffers());
  outcome.tensors.push_back(at::rand({2}));  // compares the random stream
  if (on_cuda()) {
    for (const at::Device device : {main_device(), second_device()})
      outcome.tensors.push_back(at::rand({2}, device));
  }
  to_host(outcome.tensors);
  synchronize();
  return outcome;
}

namespace {

void compare_all(Block& block) {
  for (Step& step : block.steps) {
    step.region.compares = true;
    if (!step.block.empty()) compare_all(step.block[0]);
  }
}

/// A region that does not compare raises other errors, or gives other values, where it would
/// otherwise refuse: limits.md, S17.
const char* refusal_if_compared(const Program& program) {
  if (!any_step(program.body, [](const Step& step) { return !step.region.compares; }))
    return nullptr;
  Program compared = program;
  compare_all(compared.body);
  const Outcome outcome = run(compared, Mode::kCheckpointed);
  return outcome.error ? refusal_of(*outcome.error, compared) : nullptr;
}

}  // namespace

namespace {

constexpr const char* kRaces =
    "plain code adds gradients up in the order in which threads make them";

/// True if remat may add gradients in another order than plain code: limit S49.
bool adds_otherwise(const Program& program) {
  const auto takes = [](const Step& step) { return step.op == Op::kInnerGrad; };
  const auto takes_inside = [&](const Step& step) {
    return step.op == Op::kRegion && any_step(step.block[0], takes);
  };
  return may_race(program) || any_step(program.body, takes_inside);
}

/// True if both runs agree when autograd has no device threads, so that gradients are added in one
/// order.
bool is_same_on_one_thread(Program program, Mode mode) {
  if (program.one_thread) return false;
  program.one_thread = true;
  return same(run(program, Mode::kPlain), run(program, mode));
}

/// Returns why plain runs differ among themselves, if that explains why remat differs from plain;
/// otherwise "".
std::string unsure_of(const Program& program, const Outcome& plain, const Outcome& ours,
                      Mode mode) {
  constexpr int kRuns = 4;
  bool races = false;
  std::vector<Outcome> of_plain{plain};
  std::vector<Outcome> of_ours{ours};
  for (int i = 0; i < kRuns; ++i) {
    of_plain.push_back(run(program, Mode::kPlain));
    races = races || !same(plain, of_plain.back());
    if (may_race(program)) of_ours.push_back(run(program, mode));
  }
  for (const Outcome& want : of_plain) {
    for (const Outcome& have : of_ours) {
      if (may_race(program) && same(want, have)) return kRaces;
    }
  }
  // Threads of two devices may finish in one order in all plain runs, and in another order in all
  // runs with remat; on a busy machine each run may have an order of its own.
  if (adds_otherwise(program) && is_same_on_one_thread(program, mode)) return kRaces;
  if (races) return "plain code gives something else in each run";
  set_eager_order();
  const bool depends = !same(plain, run(program, Mode::kPlain));
  set_random_order(program.seed);
  return depends ? "plain code gives something else in another order of streams" : "";
}

}  // namespace

Verdict check(const Program& program, Mode mode) {
  set_random_order(program.seed);
  const Outcome plain = run(program, Mode::kPlain);
  if (const std::string faults = device_faults(); !faults.empty())
    return {.failure = "plain: " + faults};
  const Outcome ours = run(program, mode);
  if (const std::string faults = device_faults(); !faults.empty())
    return {.failure = "remat: " + faults};
  Verdict verdict{.message = ours.error ? ours.error->message : "",
                  .raised = plain.error.has_value()};
  if (same(plain, ours)) return verdict;
  if (ours.error) verdict.refusal = refusal_of(*ours.error, program);
  if (!verdict.refusal && mode == Mode::kCheckpointed)
    verdict.refusal = refusal_if_compared(program);
  if (verdict.refusal) return verdict;
  if (on_cuda()) {
    const std::string unsure = unsure_of(program, plain, ours, mode);
    if (unsure == kRaces)
      verdict.note = kRaces;
    else if (!unsure.empty())
      verdict.failure = unsure;
    if (!unsure.empty()) return verdict;
  }
  verdict.failure = "plain: " + summary(plain) + "\nremat: " + summary(ours);
  if (!plain.error && !ours.error) verdict.message = difference(plain.tensors, ours.tensors);
  return verdict;
}

}  // namespace remat::fuzz
