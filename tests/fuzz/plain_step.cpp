// SPDX-License-Identifier: BSD-3-Clause

// Extracts the plain function of a random program, and makes programs that differ slightly.
#include "fuzz/plain_step.h"

#include <array>
#include <utility>
#include <vector>

namespace remat::fuzz {
namespace {

using Kind = ScopeChoices::Kind;

constexpr std::array kOthers = {Op::kSin,     Op::kTanh,   Op::kRelu,  Op::kSoftmax,
                                Op::kMul,     Op::kAdd,    Op::kClone, Op::kWeight,
                                Op::kDropout, Op::kRandom, Op::kWhere, Op::kLayerNorm};

/// False for hooks, for late streams, which nobody would wait for, and in most programs for changes
/// of stream and device, which no tape can replay.
bool is_kept(Kind kind, bool keeps_streams) {
  if (kind == Kind::kHooks || kind == Kind::kLateStream) return false;
  const bool changes =
      kind == Kind::kDevice || kind == Kind::kStream || kind == Kind::kSecondStream;
  return keeps_streams || !changes;
}

void make_plain(Block& block, bool keeps_streams) {
  for (Step& step : block.steps) {
    if (step.block.empty()) continue;
    if (step.op != Op::kScope || !is_kept(step.scope.kind, keeps_streams))
      step.scope.kind = Kind::kNone;
    step.op = Op::kScope;
    make_plain(step.block[0], keeps_streams);
  }
}

/// A step that may be changed, and the number of values before it.
struct Place {
  Step* step;
  size_t values;
};

void find_places(Block& block, std::vector<Place>& places) {
  size_t values = block.inputs;
  for (Step& step : block.steps) {
    if (!step.block.empty()) {
      find_places(step.block[0], places);
    } else if (result_count(step) == 1) {
      places.push_back({&step, values});
    }
    values += result_count(step);
  }
}

/// Returns a scope with the step and an op on its result.
Step with_one_more(const Step& step, size_t values, Op op) {
  Step both{.op = Op::kScope, .a = 0, .b = 0};
  both.block.push_back({.inputs = values,
                        .steps = {step, {.op = op, .a = values, .b = 0}},
                        .results = {values + 1}});
  return both;
}

}  // namespace

Program plain_step_of(Program program) {
  make_plain(program.body, /*keeps_streams=*/program.seed % 16 == 0);
  program.use = Use::kBackward;
  program.freed = Freed::kNone;
  return program;
}

Program changed(Program program, Choices& choose) {
  std::vector<Place> places;
  find_places(program.body, places);
  if (places.empty()) return program;
  const auto [step, values] = places[choose.pick(places.size())];
  const Op other = kOthers[choose.pick(kOthers.size())];
  switch (choose.pick(4)) {
    case 0:
      *step = {.op = Op::kSame, .a = step->a, .b = step->b};
      break;
    case 1:
      *step = with_one_more(Step(*step), values, other);
      break;
    case 2:
      step->a = choose.pick(values);
      break;
    default:
      step->op = other;
  }
  return program;
}

}  // namespace remat::fuzz
