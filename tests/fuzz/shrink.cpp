// SPDX-License-Identifier: BSD-3-Clause

// Makes failing programs smaller.
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
      set(program_.use, Use::kBackward);
      set(program_.freed, Freed::kNone);
      set(program_.placement, Placement::kOneDevice);
      set(program_.one_thread, false);
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

  /// Replaces the step by its operand or a copy of it, so that values keep their numbers.
  void remove(Block& block, size_t i) {
    const Step step = block.steps[i];
    if (step.op == Op::kSame) return;
    if (result_count(step) == 0) {
      block.steps.erase(block.steps.begin() + i);
      keep_if_fails([&] { block.steps.insert(block.steps.begin() + i, step); });
      return;
    }
    const size_t a = step.call.arguments.empty() ? step.a : step.call.arguments[0];
    const std::vector<Step> before = block.steps;
    for (const Op op : {Op::kSame, Op::kClone}) {
      if (step.op == op) return;
      block.steps = before;
      block.steps.erase(block.steps.begin() + i);
      block.steps.insert(block.steps.begin() + i, result_count(step), Step{op, a, a});
      if (keep_if_fails([&] { block.steps = before; })) return;
    }
  }

  /// Drops results of the body only, which are compared; results of other blocks are numbered
  /// outside them.
  void drop_result(Block& block, size_t i) {
    const std::vector<size_t> before = block.results;
    if (block.results.size() < 2) return;
    if (&block == &program_.body) {
      block.results.erase(block.results.begin() + i);
    } else {
      block.results[i] = block.results[0];
    }
    if (block.results != before) keep_if_fails([&] { block.results = before; });
  }

  void simplify(Step& step) {
    if (step.op == Op::kSame) return;
    if (step.block.empty()) return simplify_op(step);
    if (step.op == Op::kRegion) simplify_region(step);
    if (step.op == Op::kCall) simplify_call(step.call);
    if (step.op == Op::kScope) set(step.scope.kind, ScopeChoices::Kind::kNone);
    set(step.op, Op::kScope);
    visit(step.block[0]);
  }

  void simplify_op(Step& step) {
    set(step.b, step.a);
    if (info(step.op).results != 1 || step.op == Op::kClone) return;
    set(step.op, Op::kSin);
  }

  void simplify_region(Step& step) {
    RegionChoices& region = step.region;
    set(region.early_stop, true);
    set(region.compares, true);
    set(region.hooks, false);
    set(region.tape, false);
    set(region.group, size_t{0});
    drop_each(region.cuts);
    drop_each(region.rules);
    drop_each(region.arguments);
  }

  void simplify_call(CallChoices& call) {
    set(call.keep, Keep::kInnermostRegion);
    set(call.no_grad, false);
    if (call.policy == Policy::kOffload) set(call.policy, Policy::kSave);
  }

  /// Tries to drop all elements, then one after the other.
  template <class T>
  void drop_each(std::vector<T>& list) {
    set(list, {});
    for (size_t i = list.size(); i-- > 0;) {
      std::vector<T> fewer = list;
      fewer.erase(fewer.begin() + i);
      set(list, std::move(fewer));
    }
  }

  template <class T>
  void set(T& choice, T simple) {
    if (choice == simple) return;
    const T before = std::exchange(choice, std::move(simple));
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
