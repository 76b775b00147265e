// SPDX-License-Identifier: BSD-3-Clause

// Makes random programs.
#include <algorithm>
#include <array>
#include <set>

#include "fuzz/choices.h"
#include "fuzz/device.h"
#include "fuzz/program.h"
#include "fuzz/words.h"

namespace remat::fuzz {
namespace {

constexpr int kMaxDepth = 3;
constexpr size_t kMaxSteps = 8;

/// A group of values that may be views of each other. The first groups are the buffers and the
/// bank.
struct Memory {
  bool frozen = false;      // a region has read it: a write would come between forward and backward
  bool unwritable = false;  // plain code must not write it
  bool saved = false;       // autograd has saved it
};

/// Facts about a value while the program is being written.
struct Value {
  size_t memory;
  bool is_leaf = false;    // an input, which a SAVE call may not return
  bool captured = false;   // captured by a SAVE call, which may not write or return it
  bool past_save = false;  // a backward from it may pass a SAVE call
};
using Values = std::vector<Value>;

/// The region that is being written.
struct RegionState {
  RegionState* outer = nullptr;
  size_t first_memory = 0;  // index of the first memory that the region has made
  size_t calls = 0;
  bool saves = false;
  bool has_rules = false;
  std::set<size_t> reads{};   // memory from outside that the region reads
  std::set<size_t> writes{};  // memory from outside that the region writes
};

struct Place {
  int depth = 0;
  RegionState* region = nullptr;
  bool saving = false;           // inside a SAVE call of the region
  bool saving_anywhere = false;  // inside a SAVE call of the region or of one around it
  bool no_grad = false;
  bool copies = false;  // plain code's hooks keep copies
  bool inner_backward = true;
};

/// Writes programs that plain code can nearly always run and that remat need not refuse.
class Writer {
 public:
  explicit Writer(uint64_t seed) : choose_(seed), memories_(kBuffers + 1) {}

  Program program(uint64_t seed) {
    const Use use = choose_.use();
    // With two forwards before a backward, the second would write what the first has read.
    Program program{
        .body = body(1 + choose_.pick(3), use != Use::kTwoInFlight), .use = use, .seed = seed};
    // With two threads, backwards inside would add to one .grad at once, and the other ops write
    // memory that both threads read.
    const auto writes = [](const Step& step) {
      return step.op == Op::kInnerBackward || writes_in_backward(step.op);
    };
    if (program.use == Use::kTwoThreads && any_step(program.body, writes))
      program.use = Use::kBackwardThread;
    // Limit S51: plain code raises in a second backward, remat does not.
    const auto writes_shared = [](const Step& step) { return step.op == Op::kWritesShared; };
    if (runs_twice(program.use) && any_step(program.body, writes_shared))
      program.use = Use::kBackward;
    if (has_devices()) choose_devices(program);
    if (has_words(Words::kFreedStorages)) program.freed = choose_.freed(program.use);
    // Plain autograd checks the statistics that batch norm has saved, though it does not need them.
    const auto trains = [](const Step& step) { return step.op == Op::kTrainNorm; };
    if (program.freed == Freed::kForGood && any_step(program.body, trains))
      program.freed = Freed::kUntilBackward;
    return program;
  }

 private:
  void choose_devices(Program& program) {
    if (choose_.pick(2))
      program.placement = choose_.pick(2) ? Placement::kWithHost : Placement::kTwoDevices;
    program.one_thread = may_race(program) ? choose_.pick(2) != 0 : choose_.one_in(8);
  }

  static bool has_devices() { return on_cuda() && has_words(Words::kDevices); }

  Block body(size_t inputs, bool may_write_inputs) {
    Values values;
    for (size_t i = 0; i < inputs; ++i) {
      values.push_back({.memory = new_memory(), .is_leaf = true});
      const bool requires_grad = i != 1;
      memories_.back().unwritable = requires_grad || !may_write_inputs || choose_.pick(8);
    }
    Block block = steps(values, {}, kMaxSteps);
    add_results(block, values, {}, 1 + choose_.pick(2));
    return block;
  }

  size_t new_memory() {
    memories_.emplace_back();
    return memories_.size() - 1;
  }

  Block steps(Values& values, const Place& place, size_t max_steps) {
    Block block{.inputs = values.size(), .steps = {}, .results = {}};
    const size_t count = 1 + choose_.pick(max_steps);
    for (size_t i = 0; i < count; ++i) block.steps.push_back(step(values, place));
    return block;
  }

  void add_results(Block& block, const Values& values, const Place& place, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      block.results.push_back(choose_.pick_late(values.size()));
      note_read(place.region, values[block.results.back()].memory);
    }
  }

  Step step(Values& values, const Place& place) {
    Step step{choose_op(place), choose_.pick_late(values.size()), choose_.pick(values.size())};
    if (step.op == Op::kRegion) {
      write_region(step, values, place);
    } else if (step.op == Op::kCall) {
      write_call(step, values, place);
    } else if (step.op == Op::kScope) {
      write_scope(step, values, place);
    } else {
      step.op = allowed(step.op, values[step.a], place);
      note_effect(step, values, place);
    }
    return step;
  }

  Op choose_op(const Place& place) {
    if (place.depth < kMaxDepth) {
      if (choose_.one_in(place.depth == 0 ? 3 : 20)) return Op::kRegion;
      if (choose_.one_in(place.region ? 4 : 30)) return Op::kCall;
      if (choose_.one_in(has_devices() ? 7 : 14)) return Op::kScope;
    }
    if (place.region && choose_.one_in(8)) {
      const std::array ops = {Op::kReadBuffer, Op::kWriteBuffer, Op::kReadBank, Op::kWriteBank};
      return ops[choose_.pick(has_words(Words::kBank) ? 4 : 2)];
    }
    if (has_devices() && choose_.one_in(8)) return choose_.device_op();
    const Op op = choose_.op();
    const bool is_said = has_words(words_of(op)) && (!is_rare(op) || choose_.one_in(300)) &&
                         (!on_cuda() || runs_on_cuda(op));
    return is_said ? op : Op::kSin;
  }

  /// Returns `op`, or another op where `op` would make the program invalid.
  Op allowed(Op op, const Value& a, const Place& place) {
    // Hooks that keep copies would have the value from before the op writes what it saves, in plain
    // code too.
    if (place.copies && (op == Op::kRreluTraining || op == Op::kRreluInPlace)) op = Op::kRrelu;
    // Copies would also miss a later write of batch norm's statistics.
    if (place.copies && op == Op::kTrainNorm) op = Op::kLayerNorm;
    switch (info(op).effect) {
      case Effect::kWritesBuffer:
      case Effect::kWritesBank:
        return may_write_buffer(buffer_of(op), place) ? op : Op::kSin;
      case Effect::kWrites:
        return may_write(a, place) ? op : Op::kClone;
      case Effect::kIsView:
      case Effect::kMakesViews:
        // A view made without gradients stands in no graph, although it requires grad.
        return place.no_grad && op != Op::kDetach ? Op::kRelu : op;
      case Effect::kGoesBack:
        if (place.no_grad || !place.inner_backward) return Op::kSin;
        // Few programs get backwards inside, since a region refuses those that pass a SAVE call,
        // even one made by a policy.
        if (place.region && place.region->has_rules && choose_.pick(12)) return Op::kSin;
        return op == Op::kInnerGrad && a.past_save && choose_.pick(12) ? Op::kInnerBackward : op;
      case Effect::kHooksArgument:
        return place.saving ? Op::kHook : op;
      default:
        return op;
    }
  }

  bool may_write(const Value& value, const Place& place) {
    const Memory& memory = memories_[value.memory];
    if (memory.frozen || memory.unwritable || value.captured) return false;
    if (place.no_grad && is_outside(value.memory, place.region)) return false;
    return !memory.saved || choose_.one_in(6);
  }

  /// Regions notice each other's writes and keep the old values; nobody notices a write by plain
  /// code.
  bool may_write_buffer(size_t buffer, const Place& place) {
    if (!memories_[buffer].frozen) return true;
    return place.region ? has_words(Words::kLaterWrites) : choose_.one_in(60);
  }

  static size_t buffer_of(Op op) {
    const Effect effect = info(op).effect;
    return effect == Effect::kReadsBank || effect == Effect::kWritesBank ? kBuffers : 0;
  }

  static bool is_outside(size_t memory, const RegionState* region) {
    return region && memory < region->first_memory;
  }

  void note_effect(const Step& step, Values& values, const Place& place) {
    const OpInfo& op = info(step.op);
    const Value a = values[step.a];
    const Value b = values[step.b];
    const bool past_save = a.past_save || b.past_save;
    note_read(place.region, a.memory);
    note_read(place.region, b.memory);
    note_saved(op, a, b);
    switch (op.effect) {
      case Effect::kWritesBuffer:
      case Effect::kWritesBank:
        note_write(place.region, buffer_of(step.op));
        break;
      case Effect::kWrites:
        note_write(place.region, a.memory);
        if (past_save) mark_past_save(values, a.memory);
        break;
      case Effect::kIsView:
        values.push_back({.memory = a.memory, .captured = a.captured, .past_save = a.past_save});
        return;
      case Effect::kReadsBuffer:
      case Effect::kReadsBank:
        note_read(place.region, buffer_of(step.op));
        break;
      default:
        break;
    }
    add_made(op, values, past_save);
  }

  void add_made(const OpInfo& op, Values& values, bool past_save) {
    for (size_t i = 0; i < op.results; ++i) {
      const bool shares = op.effect == Effect::kMakesViews && i > 0;
      values.push_back(
          {.memory = shares ? memories_.size() - 1 : new_memory(), .past_save = past_save});
      memories_.back().unwritable = op.effect == Effect::kMakesViews;
      memories_.back().saved = i == 0 && op.saves.find('r') != op.saves.npos;
    }
  }

  void note_saved(const OpInfo& op, const Value& a, const Value& b) {
    if (op.saves.find('a') != op.saves.npos) memories_[a.memory].saved = true;
    if (op.saves.find('b') != op.saves.npos) memories_[b.memory].saved = true;
  }

  static void note_read(RegionState* region, size_t memory) {
    for (; is_outside(memory, region); region = region->outer) region->reads.insert(memory);
  }

  static void note_write(RegionState* region, size_t memory) {
    note_read(region, memory);
    for (; is_outside(memory, region); region = region->outer) region->writes.insert(memory);
  }

  static void note_save(Keep keep, RegionState* region) {
    for (; region; region = keep == Keep::kAllRegions ? region->outer : nullptr)
      region->saves = true;
  }

  static void mark_past_save(Values& values, size_t memory) {
    for (Value& value : values) value.past_save = value.past_save || value.memory == memory;
  }

  void write_region(Step& step, Values& values, const Place& place) {
    RegionState region{.outer = place.region, .first_memory = memories_.size()};
    step.region = choose_.region();
    step.region.arguments = arguments_of_region(values);
    region.saves = region.has_rules = !step.region.rules.empty();
    Place inside = place;
    ++inside.depth;
    inside.region = &region;
    inside.saving = false;
    // A backward inside may start a replay without early stop, which would reach reads and writes
    // that the forward has not done yet.
    if (!step.region.early_stop) inside.inner_backward = false;
    for (const size_t argument : step.region.arguments)
      note_read(inside.region, values[argument].memory);
    Values inner = values;
    Block block = steps(inner, inside, kMaxSteps);
    write_buffers(block, inner, region);
    if (has_devices() && inside.depth < kMaxDepth && choose_.one_in(10))
      block.steps.push_back(late_stream(inner, inside));
    add_results(block, inner, inside, 1 + choose_.pick(2));
    close_region(step.region, values, region);
    for (const size_t result : block.results) {
      values.push_back(inner[result]);
      // Memory that SAVE calls and ops return is kept unchanged for the region's replay.
      if (region.saves) memories_[inner[result].memory].frozen = true;
    }
    step.block.push_back(std::move(block));
  }

  /// If a value becomes an argument, so do its possible views, because a replay passes another
  /// tensor for an argument.
  std::vector<size_t> arguments_of_region(const Values& values) {
    std::set<size_t> memories;
    if (choose_.one_in(3)) {
      for (const Value& value : values) memories.insert(value.memory);
    } else {
      for (size_t i = choose_.pick(4); i > 0; --i)
        memories.insert(values[choose_.pick_late(values.size())].memory);
    }
    std::vector<size_t> arguments;
    for (size_t i = 0; i < values.size(); ++i) {
      if (memories.count(values[i].memory)) arguments.push_back(i);
    }
    return arguments;
  }

  /// Often writes the buffers that the region reads, because plain code cannot write them later.
  void write_buffers(Block& block, const Values& values, RegionState& region) {
    for (const Op op : {Op::kWriteBuffer, Op::kWriteBank}) {
      const size_t buffer = buffer_of(op);
      if (!region.reads.count(buffer) || region.writes.count(buffer)) continue;
      if (has_words(Words::kLaterWrites) && choose_.one_in(2)) continue;
      const size_t a = choose_.pick_late(values.size());
      const size_t b = choose_.pick(kParts) % values.size();  // index of a part and a value
      block.steps.push_back({op, a, b});
      note_read(&region, values[a].memory);
      note_write(&region, buffer);
    }
  }

  void close_region(const RegionChoices& choices, const Values& values, const RegionState& region) {
    for (const size_t argument : choices.arguments)
      memories_[values[argument].memory].frozen = true;
    for (const size_t memory : region.reads) {
      if (!region.writes.count(memory)) memories_[memory].frozen = true;
    }
  }

  Step late_stream(Values& values, const Place& place) {
    Step step{.op = Op::kScope, .a = 0, .b = 0, .scope = {.kind = ScopeChoices::Kind::kLateStream}};
    write_scope(step, values, place);
    return step;
  }

  void write_scope(Step& step, Values& values, const Place& place) {
    if (step.scope.kind == ScopeChoices::Kind::kNone) step.scope = choose_.scope();
    step.scope.name = "scope" + std::to_string(scopes_++);
    Place inside = place;
    ++inside.depth;
    inside.copies = place.copies || step.scope.kind == ScopeChoices::Kind::kHooks;
    Values inner = values;
    Block block = steps(inner, inside, kMaxSteps / 2);
    add_results(block, inner, inside, 1 + choose_.pick(2));
    for (size_t i = 0; i < values.size(); ++i) values[i].past_save = inner[i].past_save;
    for (const size_t result : block.results) values.push_back(inner[result]);
    step.block.push_back(std::move(block));
  }

  void write_call(Step& step, Values& values, const Place& place) {
    step.call = choose_call(values, place);
    const CallChoices& call = step.call;
    const bool saved = call.policy != Policy::kRecompute;
    if (saved) note_save(call.keep, place.region);
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

  CallChoices choose_call(const Values& values, const Place& place) {
    CallChoices call = choose_.call(!place.saving);
    if (call.policy == Policy::kRecompute && place.saving_anywhere)
      call.keep = Keep::kInnermostRegion;
    // Names must be unique in each region to which the call belongs.
    call.name = call.keep == Keep::kAllRegions || !place.region
                    ? "all" + std::to_string(calls_++)
                    : "call" + std::to_string(place.region->calls++);
    const size_t arguments = 1 + choose_.pick(3);
    for (size_t i = 0; i < arguments; ++i)
      call.arguments.push_back(choose_.pick_late(values.size()));
    if (choose_.one_in(5)) call.arguments.push_back(call.arguments[0]);
    const size_t captures = choose_.pick(3);
    for (size_t i = 0; i < captures; ++i) call.captures.push_back(choose_.pick_late(values.size()));
    for (const auto* numbers : {&call.arguments, &call.captures}) {
      for (const size_t i : *numbers) note_read(place.region, values[i].memory);
    }
    return call;
  }

  void add_call_results(Block& block, const Values& values, bool saved) {
    const size_t count = choose_.pick(4);
    for (size_t i = 0; i < count; ++i) {
      const size_t result = choose_.pick_late(values.size());
      if (!saved || !(values[result].captured || values[result].is_leaf))
        block.results.push_back(result);
    }
  }

  Choices choose_;
  std::vector<Memory> memories_;
  size_t calls_ = 0;
  size_t scopes_ = 0;
};

}  // namespace

Program make_program(uint64_t seed) {
  return Writer(seed).program(seed);
}

}  // namespace remat::fuzz
