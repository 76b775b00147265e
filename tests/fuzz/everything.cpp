// SPDX-License-Identifier: BSD-3-Clause

// One program that has every op and every kind of step.
#include "fuzz/program.h"
#include "fuzz/words.h"

namespace remat::fuzz {
namespace {

using Kind = ScopeChoices::Kind;

class EverythingWriter {
 public:
  explicit EverythingWriter(size_t inputs)
      : block_{.inputs = inputs, .steps = {}, .results = {}}, count_(inputs) {}

  EverythingWriter& add(Step step) {
    count_ += result_count(step);
    block_.steps.push_back(std::move(step));
    return *this;
  }

  /// Adds an op on the newest value; in-place ops get a tensor of their own.
  EverythingWriter& op(Op op) {
    if (info(op).effect == Effect::kWrites || info(op).effect == Effect::kHooksArgument)
      add({.op = Op::kClone, .a = 0, .b = 0});
    return add({.op = op, .a = last(), .b = last()});
  }

  EverythingWriter& scope(Kind kind, const std::string& name) {
    Step step{.op = Op::kScope, .a = 0, .b = 0, .scope = {.kind = kind, .name = name}};
    step.block.push_back(EverythingWriter(count_).op(Op::kWeight).op(Op::kSin).done(1));
    return add(std::move(step));
  }

  EverythingWriter& call(Policy policy, Keep keep, size_t results, bool no_grad) {
    Step step{.op = Op::kCall, .a = 0, .b = 0};
    step.call = {.name = "call" + std::to_string(calls_++),
                 .policy = policy,
                 .keep = keep,
                 .no_grad = no_grad,
                 .arguments = {last()},
                 .captures = {last() - 1}};
    if (results == 2) step.call.arguments.push_back(last());
    const size_t inputs = step.call.arguments.size() + 1;
    step.block.push_back(
        EverythingWriter(inputs).op(Op::kTanh).op(Op::kMul).op(Op::kSin).done(results));
    return add(std::move(step));
  }

  EverythingWriter& region(RegionChoices choices, Block block) {
    return add({.op = Op::kRegion,
                .a = 0,
                .b = 0,
                .block = {std::move(block)},
                .region = std::move(choices)});
  }

  size_t count() const { return count_; }

  /// Returns the block, with the last values as results.
  Block done(size_t results) {
    for (size_t i = 0; i < results; ++i) block_.results.push_back(last() - i);
    return std::move(block_);
  }

 private:
  size_t last() const { return count_ - 1; }

  Block block_;
  size_t count_;
  size_t calls_ = 0;
};

Block all_ops(size_t inputs) {
  EverythingWriter writer(inputs);
  for (size_t i = 0; i < static_cast<size_t>(Op::kOpCount); ++i) {
    const Op op = static_cast<Op>(i);
    if (has_words(words_of(op)) && !is_rare(op)) writer.op(op);
  }
  return writer.done(2);
}

Block all_calls(size_t inputs) {
  EverythingWriter writer(inputs);
  writer.op(Op::kSin).op(Op::kTanh);
  for (const Policy policy : {Policy::kSave, Policy::kOffload, Policy::kRecompute}) {
    for (size_t results = 0; results < 3; ++results) {
      const Keep keep = results == 1 ? Keep::kAllRegions : Keep::kInnermostRegion;
      writer.call(policy, keep, results, /*no_grad=*/results == 0);
    }
  }
  return writer.done(2);
}

}  // namespace

Program program_of_everything() {
  EverythingWriter writer(3);
  writer.op(Op::kSin)
      .scope(Kind::kAutocast, "autocast")
      .scope(Kind::kHooks, "hooks")
      .scope(Kind::kNames, "names")
      .scope(Kind::kNone, "none");
  const std::vector<OpRule> rules = {
      {.op = "aten::sin", .policy = Policy::kSave},
      {.op = "aten::mul", .policy = Policy::kOffload},
      {.op = "save_matmuls", .policy = Policy::kSave, .is_preset = true}};
  writer.region(
      {.arguments = {0, 3}, .rules = rules, .tape = true, .cuts = {0.3, 0.5, 0.7}, .group = 2},
      EverythingWriter(writer.count())
          .op(Op::kSin)
          .op(Op::kMul)
          .op(Op::kWeight)
          .op(Op::kTanh)
          .op(Op::kMul)
          .done(2));
  writer.region({.arguments = {0}, .tape = true}, all_ops(writer.count()));
  const RegionChoices choices{
      .arguments = {0, 1}, .early_stop = false, .compares = false, .hooks = true};
  EverythingWriter inner(writer.count());
  inner.region({}, all_calls(writer.count())).op(Op::kTanh);
  writer.region(choices, inner.done(2));
  return {.body = writer.done(3), .freed = Freed::kUntilBackward};
}

}  // namespace remat::fuzz
