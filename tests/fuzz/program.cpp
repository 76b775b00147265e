// SPDX-License-Identifier: BSD-3-Clause

// Properties of a program that can be read off its steps.
#include "fuzz/program.h"

#include <algorithm>
#include <numeric>

namespace remat::fuzz {
namespace {

void add_used(const Step& step, std::set<size_t>& used) {
  if (step.block.empty()) {
    used.insert({step.a, step.b});
    return;
  }
  const std::vector<size_t> inputs = block_inputs(step);
  for (const size_t input : used_inputs(step.block[0])) used.insert(inputs[input]);
  used.insert(step.region.arguments.begin(), step.region.arguments.end());
  used.insert(step.call.arguments.begin(), step.call.arguments.end());
}

}  // namespace

size_t result_count(const Step& step) {
  if (!step.block.empty()) return step.block[0].results.size();
  return step.op == Op::kSame ? 1 : info(step.op).results;
}

std::vector<size_t> block_inputs(const Step& step) {
  std::vector<size_t> inputs = step.call.arguments;
  inputs.insert(inputs.end(), step.call.captures.begin(), step.call.captures.end());
  // A call keeps its arguments and captures when shrinking has turned it into another step.
  if (!inputs.empty()) return inputs;
  inputs.resize(step.block[0].inputs);
  std::iota(inputs.begin(), inputs.end(), size_t{0});
  return inputs;
}

std::set<size_t> used_inputs(const Block& block) {
  std::set<size_t> used(block.results.begin(), block.results.end());
  for (const Step& step : block.steps) add_used(step, used);
  used.erase(used.lower_bound(block.inputs), used.end());
  return used;
}

bool may_race(const Program& program) {
  if (program.placement != Placement::kOneDevice) return true;
  return any_step(program.body, [](const Step& step) {
    return step.op == Op::kToHost || step.op == Op::kToSecond;
  });
}

bool any_step(const Block& block, const std::function<bool(const Step&)>& is_such) {
  return std::any_of(block.steps.begin(), block.steps.end(), [&](const Step& step) {
    return is_such(step) || (!step.block.empty() && any_step(step.block[0], is_such));
  });
}

}  // namespace remat::fuzz
