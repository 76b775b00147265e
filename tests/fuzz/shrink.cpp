// SPDX-License-Identifier: BSD-3-Clause

// Making failing programs smaller.
#include "fuzz/shrink.h"

#include <algorithm>
#include <utility>

namespace remat::fuzz {
namespace {

class Shrinker {
 public:
  Shrinker(const Program& program, const std::function<bool(const Program&)>& fails)
      : program_(program), fails_(fails) {}

  Program shrink() {
    do {
      changed_ = false;
      visit(program_.body);
    } while (changed_);
    return std::move(program_);
  }

 private:
  void visit(Block& block) {
    for (size_t i = block.steps.size(); i-- > 0;) remove(block, i);
    for (size_t i = block.results.size(); i-- > 0;) drop_result(block, i);
    for (Step& step : block.steps) simplify(step);
  }

  /// In the step's place, the value that it was made of, or a copy of it; no number changes.
  void remove(Block& block, size_t i) {
    const std::vector<Step> before = block.steps;
    const Step step = before[i];
    const size_t results = result_count(step);
    if (remove_unused(block, i) || step.op == Op::kSame) return;
    const size_t a = step.op == Op::kCall ? step.call.arguments[0] : step.a;
    for (const Op op : {Op::kSame, Op::kClone}) {
      if (step.op == op) return;
      block.steps = before;
      block.steps.erase(block.steps.begin() + i);
      block.steps.insert(block.steps.begin() + i, results, Step{op, a, a});
      if (keep_if_fails([&] { block.steps = before; })) return;
    }
  }

  /// Leaves out the last step if nobody wants its value.
  bool remove_unused(Block& block, size_t i) {
    size_t last = block.inputs;
    for (const Step& step : block.steps) last += result_count(step);
    if (i + 1 != block.steps.size() || result_count(block.steps[i]) != 1 ||
        std::find(block.results.begin(), block.results.end(), last - 1) != block.results.end())
      return false;
    const Step step = block.steps.back();
    block.steps.pop_back();
    return keep_if_fails([&] { block.steps.push_back(step); });
  }

  // The body's results are what is looked at; a region's are numbered outside of it.
  void drop_result(Block& block, size_t i) {
    if (&block != &program_.body || block.results.size() < 2) return;
    const std::vector<size_t> before = block.results;
    block.results.erase(block.results.begin() + i);
    keep_if_fails([&] { block.results = before; });
  }

  void simplify(Step& step) {
    if (step.op == Op::kRegion) set(step.region.early_stop, true);
    if (step.op == Op::kRegion) set(step.region.compares, true);
    if (step.op == Op::kRegion) set(step.region.tape, false);
    if (step.op == Op::kRegion) set(step.region.group, size_t{0});
    if (step.op == Op::kRegion) set(step.region.cuts, {});
    for (size_t i = step.region.cuts.size(); i-- > 0;) {
      std::vector<double> fewer = step.region.cuts;
      fewer.erase(fewer.begin() + i);
      set(step.region.cuts, fewer);
    }
    if (step.op == Op::kRegion) set(step.region.saved_ops, {});
    for (size_t i = step.region.saved_ops.size(); i-- > 0;) {
      std::vector<std::string> fewer = step.region.saved_ops;
      fewer.erase(fewer.begin() + i);
      set(step.region.saved_ops, fewer);
    }
    if (step.op == Op::kCall) simplify_call(step);
    if (step.block.empty()) return;
    visit(step.block[0]);
  }

  void simplify_call(Step& step) {
    CallChoices& call = step.call;
    set(call.keep, Keep::kInnermostRegion);
    set(call.no_grad, false);
    if (call.policy == Policy::kOffload) set(call.policy, Policy::kSave);
  }

  template <class T>
  void set(T& choice, T simple) {
    if (choice == simple) return;
    const T before = std::exchange(choice, simple);
    keep_if_fails([&] { choice = before; });
  }

  template <class Undo>
  bool keep_if_fails(Undo&& undo) {
    const bool kept = fails_(program_);
    changed_ = changed_ || kept;
    if (!kept) undo();
    return kept;
  }

  Program program_;
  const std::function<bool(const Program&)>& fails_;
  bool changed_ = false;
};

}  // namespace

Program shrink(const Program& program, const std::function<bool(const Program&)>& fails) {
  return Shrinker(program, fails).shrink();
}

}  // namespace remat::fuzz
