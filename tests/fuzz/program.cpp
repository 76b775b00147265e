// SPDX-License-Identifier: BSD-3-Clause

// Making random programs.
#include "fuzz/program.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace remat::fuzz {
namespace {

constexpr int kMaxDepth = 3;
constexpr size_t kMaxSteps = 8;

/// What is known of a value while the program is written.
struct Value {
  size_t memory;           // values with the same one may be views of each other
  bool is_leaf = false;    // an input: a SAVE call may not return it
  bool captured = false;   // by a SAVE call, which may not write or return it
  bool past_save = false;  // a backward from it may pass a SAVE call
};
using Values = std::vector<Value>;

/// The region that is being written. A buffer which a region reads is written by it too: else a
/// later write of another region would be one between forward and backward.
struct RegionState {
  RegionState* outer = nullptr;
  size_t calls = 0;
  std::array<bool, kBuffers> reads{};
  std::array<bool, kBuffers> writes{};
};

struct Place {
  int depth = 0;
  RegionState* region = nullptr;
  bool saving = false;           // in a SAVE call of the region
  bool saving_anywhere = false;  // or of a region around it
  bool no_grad = false;
  bool inner_backward = true;
};

/// Writes programs. In-place ops go only to memory that the same region has made, and that is no
/// argument or result of a region inside: a replay needs these as they were.
class Writer {
 public:
  explicit Writer(std::mt19937_64& random) : random_(random) {}

  Block body(size_t inputs) {
    Values values;
    for (size_t i = 0; i < inputs; ++i) values.push_back({.memory = new_memory(), .is_leaf = true});
    for (const Value& value : values) frozen_[value.memory] = true;
    Block block = steps(values, {}, kMaxSteps);
    add_results(block, values, 1 + pick(2));
    return block;
  }

 private:
  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

  /// Prefers what was made last, so that programs are deep rather than wide.
  size_t pick_late(size_t count) {
    return pick(3) ? count - 1 - pick(std::min<size_t>(count, 2)) : pick(count);
  }

  size_t new_memory() {
    frozen_.push_back(false);
    return frozen_.size() - 1;
  }

  Block steps(Values& values, const Place& place, size_t max_steps) {
    Block block{.inputs = values.size(), .steps = {}, .results = {}};
    const size_t count = 1 + pick(max_steps);
    for (size_t i = 0; i < count; ++i) block.steps.push_back(step(values, place));
    return block;
  }

  void add_results(Block& block, const Values& values, size_t count) {
    for (size_t i = 0; i < count; ++i) block.results.push_back(pick_late(values.size()));
  }

  Step step(Values& values, const Place& place) {
    Step step{choose_op(place), pick_late(values.size()), pick(values.size())};
    const Value a = values[step.a];
    if (writes(step.op) && (frozen_[a.memory] || a.captured)) step.op = Op::kClone;
    // Few of them: a region refuses these.
    if (step.op == Op::kInnerGrad && a.past_save && pick(12)) step.op = Op::kInnerBackward;
    if (step.op == Op::kRegion) {
      write_region(step, values, place);
    } else if (step.op == Op::kCall) {
      write_call(step, values, place);
    } else {
      note_effect(step, values, place);
    }
    return step;
  }

  Op choose_op(const Place& place) {
    Op op = static_cast<Op>(pick(static_cast<size_t>(Op::kCount)));
    if (place.depth == 0 && pick(3) == 0) op = Op::kRegion;
    if (place.region && pick(8) == 0) op = pick(2) ? Op::kReadBuffer : Op::kWriteBuffer;
    if (place.region && pick(4) == 0) op = Op::kCall;
    if ((op == Op::kRegion || op == Op::kCall) && place.depth == kMaxDepth) op = Op::kTanh;
    // Such a view stands in no graph although it requires grad.
    if (is_view(op) && op != Op::kDetach && place.no_grad) op = Op::kRelu;
    if (backs(op) && (place.no_grad || !place.inner_backward)) op = Op::kSin;
    return op;
  }

  void note_effect(const Step& step, Values& values, const Place& place) {
    const Value a = values[step.a];
    const bool past_save = a.past_save || values[step.b].past_save;
    if (step.op == Op::kReadBuffer) note_buffer(place.region, &RegionState::reads, step.b);
    if (step.op == Op::kWriteBuffer) {
      note_buffer(place.region, &RegionState::writes, step.b);
    } else if (writes(step.op)) {
      if (past_save) mark_past_save(values, a.memory);
    } else if (is_view(step.op)) {
      values.push_back({.memory = a.memory, .captured = a.captured, .past_save = a.past_save});
    } else {
      values.push_back({.memory = new_memory(), .past_save = past_save});
    }
  }

  static void note_buffer(RegionState* region, std::array<bool, kBuffers> RegionState::*use,
                          size_t buffer) {
    for (; region; region = region->outer) (region->*use)[buffer % kBuffers] = true;
  }

  static void mark_past_save(Values& values, size_t memory) {
    for (Value& value : values) value.past_save = value.past_save || value.memory == memory;
  }

  void write_region(Step& step, Values& values, const Place& place) {
    for (const Value& value : values) frozen_[value.memory] = true;
    RegionState region{.outer = place.region};
    step.region = {.early_stop = pick(4) != 0,
                   .compares = pick(4) != 0,
                   .saved_ops = saved_ops(),
                   .tape = pick(2) != 0};
    for (size_t i = pick(2) == 0 ? 0 : 1 + pick(3); i > 0; --i)
      step.region.cuts.push_back(static_cast<double>(pick(100)) / 100);
    step.region.group = pick(2) * (2 + pick(2));
    Place inside = place;
    ++inside.depth;
    inside.region = &region;
    inside.saving = false;
    // A replay to the end for a backward inside gets to reads and writes that the forward has not
    // done.
    if (!step.region.early_stop) inside.inner_backward = false;
    Values inner = values;
    Block block = steps(inner, inside, kMaxSteps);
    for (size_t i = 0; i < kBuffers; ++i) {
      if (!region.reads[i] || region.writes[i]) continue;
      block.steps.push_back({Op::kWriteBuffer, pick_late(inner.size()), i});
      note_buffer(&region, &RegionState::writes, i);
    }
    add_results(block, inner, 1 + pick(2));
    // Nor may its results be written: they may be kept for its replay as they are.
    for (const size_t result : block.results) {
      values.push_back(inner[result]);
      frozen_[inner[result].memory] = true;
    }
    step.block.push_back(std::move(block));
  }

  /// Mostly none.
  std::vector<std::string> saved_ops() {
    if (pick(3)) return {};
    constexpr std::array kOps = {"aten::sin",
                                 "aten::tanh",
                                 "aten::mm",
                                 "aten::mul",
                                 "aten::softmax",
                                 "aten::*norm*",
                                 "aten::add",
                                 "aten::cat",
                                 "aten::clone",
                                 "aten::index",
                                 "aten::relu",
                                 "aten::transpose",
                                 "tag:pointwise",
                                 "tag:view",
                                 "aten::dropout",
                                 "aten::mul_",
                                 "aten::add_",
                                 "aten::select",
                                 "*"};
    std::vector<std::string> ops;
    for (size_t i = 1 + pick(3); i > 0; --i) ops.emplace_back(kOps[pick(kOps.size())]);
    return ops;
  }

  void write_call(Step& step, Values& values, const Place& place) {
    step.call = choose_call(values.size(), place);
    const CallChoices& call = step.call;
    const bool saved = call.policy != Policy::kRecompute;
    Values inner;
    for (const size_t i : call.arguments) inner.push_back(values[i]);
    for (const size_t i : call.captures) {
      inner.push_back(values[i]);
      inner.back().captured = inner.back().captured || saved;
    }
    Place inside = place;
    ++inside.depth;
    inside.saving = place.saving || saved;
    inside.saving_anywhere = place.saving_anywhere || saved;
    inside.no_grad = place.no_grad || call.no_grad;
    Block block = steps(inner, inside, kMaxSteps / 2);
    add_call_results(block, inner, saved);
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (saved || inner[i].past_save) mark_past_save(values, inner[i].memory);
    }
    for (const size_t result : block.results) {
      values.push_back(inner[result]);
      values.back().past_save = values.back().past_save || saved;
    }
    step.block.push_back(std::move(block));
  }

  CallChoices choose_call(size_t values, const Place& place) {
    constexpr std::array kPolicies = {Policy::kSave, Policy::kSave, Policy::kOffload,
                                      Policy::kRecompute};
    CallChoices call{.policy = kPolicies[pick(place.saving ? 3 : 4)],
                     .keep = pick(3) ? Keep::kInnermostRegion : Keep::kAllRegions,
                     .no_grad = pick(8) == 0};
    if (call.policy == Policy::kRecompute && place.saving_anywhere)
      call.keep = Keep::kInnermostRegion;
    // Names are unique in each region that the call belongs to.
    call.name = call.keep == Keep::kAllRegions || !place.region
                    ? "all" + std::to_string(calls_++)
                    : "call" + std::to_string(place.region->calls++);
    const size_t arguments = 1 + pick(3);
    for (size_t i = 0; i < arguments; ++i) call.arguments.push_back(pick_late(values));
    if (pick(5) == 0) call.arguments.push_back(call.arguments[0]);
    const size_t captures = pick(3);
    for (size_t i = 0; i < captures; ++i) call.captures.push_back(pick_late(values));
    return call;
  }

  void add_call_results(Block& block, const Values& values, bool saved) {
    const size_t count = pick(4);
    for (size_t i = 0; i < count; ++i) {
      const size_t result = pick_late(values.size());
      if (!saved || !(values[result].captured || values[result].is_leaf))
        block.results.push_back(result);
    }
  }

  static bool writes(Op op) {
    return op == Op::kScaleInPlace || op == Op::kAddInPlace || op == Op::kSelectInPlace;
  }
  static bool backs(Op op) { return op == Op::kInnerGrad || op == Op::kInnerBackward; }
  static bool is_view(Op op) {
    return op == Op::kTranspose || op == Op::kReshape || op == Op::kDetach;
  }

  std::mt19937_64& random_;
  std::vector<bool> frozen_;  // per memory: not to be written any more
  size_t calls_ = 0;
};

// clang-format off
constexpr std::array kNames = {
    "sin", "tanh", "relu", "softmax", "layer_norm", "mul", "add", "matmul",
    "weight", "dropout", "random", "t", "reshape", "cat", "window", "index",
    "detach", "clone", "mul_", "add_", "select.mul_", "no_grad", "custom", "inner_grad",
    "inner_backward", "read_buffer", "write_buffer", "region", "call", "", "same"};
// clang-format on
static_assert(kNames.size() == static_cast<size_t>(Op::kSame) + 1);

std::string list(const std::vector<size_t>& numbers) {
  std::ostringstream text;
  for (const size_t number : numbers) text << " %" << number;
  return text.str();
}

std::string to_string(const CallChoices& call) {
  return " '" + call.name + "' " + policy_name(call.policy) +
         (call.keep == Keep::kAllRegions ? " all_regions" : "") + (call.no_grad ? " no_grad" : "") +
         ", arguments" + list(call.arguments) + ", captures" + list(call.captures);
}

}  // namespace

Program make_program(std::mt19937_64& random) {
  const size_t inputs = 1 + random() % 3;
  return {Writer(random).body(inputs)};
}

std::string to_string(const Block& block, int indent) {
  std::ostringstream text;
  const std::string margin(static_cast<size_t>(indent) * 2, ' ');
  size_t next = block.inputs;
  for (const Step& step : block.steps) {
    text << margin;
    const size_t results = result_count(step);
    for (size_t i = 0; i < results; ++i) text << '%' << next++ << ' ';
    text << (results ? "= " : "") << kNames[static_cast<size_t>(step.op)];
    if (step.op == Op::kCall) {
      text << to_string(step.call);
    } else if (step.op == Op::kRegion) {
      text << (step.region.early_stop ? "" : ", to its end")
           << (step.region.compares ? "" : ", not compared")
           << (step.region.tape ? ", from a tape" : "");
      for (const double cut : step.region.cuts) text << ", cut at " << cut;
      if (step.region.group > 0) text << ", in groups of " << step.region.group;
      for (const std::string& op : step.region.saved_ops) text << ", saves " << op;
    } else {
      text << "(%" << step.a << ", %" << step.b << ')';
    }
    text << '\n';
    for (const Block& inner : step.block) text << to_string(inner, indent + 1);
  }
  text << margin << "return" << list(block.results) << '\n';
  return text.str();
}

size_t result_count(const Step& step) {
  if (!step.block.empty()) return step.block[0].results.size();
  switch (step.op) {
    case Op::kScaleInPlace:
    case Op::kAddInPlace:
    case Op::kSelectInPlace:
    case Op::kWriteBuffer:
      return 0;
    default:
      return 1;
  }
}

}  // namespace remat::fuzz
