// SPDX-License-Identifier: BSD-3-Clause

// Making random programs.
#include "fuzz/program.h"

#include <array>
#include <sstream>

namespace remat::fuzz {
namespace {

constexpr int kMaxDepth = 3;
constexpr size_t kMaxSteps = 8;

/// Writes programs. In-place ops go only to memory that the same block has made: a region refuses
/// to write its arguments.
class Writer {
 public:
  explicit Writer(std::mt19937_64& random) : random_(random) {}

  Block block(size_t inputs, int depth) {
    Block result;
    std::vector<bool> own(inputs, false);  // per value: its memory was made in this block
    const size_t steps = 1 + pick(kMaxSteps);
    for (size_t i = 0; i < steps; ++i) result.steps.push_back(step(own, depth));
    const size_t results = 1 + pick(2);
    for (size_t i = 0; i < results; ++i) result.results.push_back(pick_late(own.size()));
    return result;
  }

 private:
  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

  /// Prefers what was made last, so that programs are deep rather than wide.
  size_t pick_late(size_t count) {
    return pick(3) ? count - 1 - pick(std::min<size_t>(count, 2)) : pick(count);
  }

  Step step(std::vector<bool>& own, int depth) {
    Op op = static_cast<Op>(pick(static_cast<size_t>(Op::kCount)));
    if (depth == 0 && pick(3) == 0) op = Op::kRegion;
    if (op == Op::kRegion && depth == kMaxDepth) op = Op::kTanh;
    Step step{op, pick_late(own.size()), pick(own.size()), {}};
    if (writes(op) && !own[step.a]) step.op = Op::kClone;
    if (step.op == Op::kRegion) {
      step.region.push_back(block(own.size(), depth + 1));
      // A replay needs the region's arguments as they were, and its results may be among them.
      own.assign(own.size() + step.region[0].results.size(), false);
    } else if (!writes(step.op)) {
      own.push_back(is_view(step.op) ? own[step.a] : true);
    }
    return step;
  }

  static bool writes(Op op) {
    return op == Op::kScaleInPlace || op == Op::kAddInPlace || op == Op::kSelectInPlace;
  }
  static bool is_view(Op op) {
    return op == Op::kTranspose || op == Op::kReshape || op == Op::kDetach;
  }

  std::mt19937_64& random_;
};

constexpr std::array<const char*, static_cast<size_t>(Op::kCount)> kNames = {
    "sin",    "tanh",       "relu",           "softmax", "layer_norm", "mul",         "add",
    "matmul", "weight",     "dropout",        "random",  "t",          "reshape",     "cat",
    "index",  "detach",     "clone",          "mul_",    "add_",       "select.mul_", "no_grad",
    "custom", "inner_grad", "inner_backward", "region"};

}  // namespace

Program make_program(std::mt19937_64& random) {
  const size_t inputs = 1 + random() % 3;
  return {Writer(random).block(inputs, 0), inputs};
}

std::string to_string(const Block& block, int indent) {
  std::ostringstream text;
  const std::string margin(static_cast<size_t>(indent) * 2, ' ');
  for (const Step& step : block.steps) {
    text << margin << kNames[static_cast<size_t>(step.op)] << '(' << step.a << ", " << step.b
         << ")\n";
    for (const Block& region : step.region) text << to_string(region, indent + 1);
  }
  text << margin << "return";
  for (const size_t result : block.results) text << ' ' << result;
  text << '\n';
  return text.str();
}

}  // namespace remat::fuzz
