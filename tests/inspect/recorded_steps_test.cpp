// SPDX-License-Identifier: BSD-3-Clause

// Recorded steps: each byte at the peak has its op, and each replayed op has its op of the forward.
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>
#include <remat/recording/replay_links.h>
#include <remat/remat.h>

#include "inspect/recorded_program.h"
#include "support/catch.h"
#include "support/default_device.h"

namespace remat {
namespace {

using test::recording_of;

using Function = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor weight() {
  static const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
  return w;
}

at::Tensor block(const at::Tensor& x) {
  return x + torch::gelu(at::linear(x.softmax(-1), weight())).mm(weight());
}

at::Tensor three_blocks(const at::Tensor& x) {
  return block(block(block(x)));
}

Function with_saved_call() {
  return [](const at::Tensor& x) {
    const auto project = [](const at::Tensor& y) { return y.mm(weight()).sin(); };
    return native_op(project, "project", Policy::kSave)(block(x)).exp();
  };
}

Function nested(ReplayEngine inner) {
  return [inner](const at::Tensor& x) {
    return checkpoint({.name = "inner", .replay = inner})(block)(x.sin()).cos();
  };
}

CheckpointOptions with(ReplayEngine replay, bool saves_matmuls = false) {
  CheckpointOptions options{.name = "outer", .replay = replay};
  if (saves_matmuls) options.policy = make_policy(save_matmuls());
  return options;
}

struct Step {
  const char* name;
  Function function;
  CheckpointOptions options;
};

std::vector<Step> steps() {
  const auto function = ReplayEngine::kFunction;
  const auto tape = ReplayEngine::kTape;
  CheckpointOptions cut = with(tape);
  cut.cuts = Cuts{.positions = {4, 8, 12}};
  CheckpointOptions grouped = cut;
  grouped.cuts.groups = {{0, 2}, {2, 4}};
  return {{"function", three_blocks, with(function)},
          {"tape", three_blocks, with(tape)},
          {"cut tape", three_blocks, cut},
          {"groups of a cut tape", three_blocks, grouped},
          {"SAVE call of a function", with_saved_call(), with(function)},
          {"SAVE call on a tape", with_saved_call(), with(tape)},
          {"rule of a function", three_blocks, with(function, true)},
          {"rule on a tape", three_blocks, with(tape, true)},
          {"function in a function", nested(function), with(function)},
          {"tape in a function", nested(tape), with(function)},
          {"function in a tape", nested(function), with(tape)},
          {"tape in a tape", nested(tape), with(tape)}};
}

void run(const Step& step) {
  const at::Tensor x = torch::linspace(-2, 2, 32 * 8).view({32, 8}).clone().requires_grad_();
  checkpoint(step.options)(step.function)(x.sin()).sum().backward();
}

/// Checks that the ops inside replays, and no others, have the phase of a replay.
void check_phases(const Recording& recording) {
  for (const auto& op : recording.ops) {
    const bool in_replay =
        std::any_of(recording.replays.begin(), recording.replays.end(), [&](const auto& replay) {
          return replay.begin_ns <= op.begin_ns && op.end_ns <= replay.end_ns;
        });
    INFO(recording.text(op.name));
    CHECK((op.phase == OpPhase::kReplay) == in_replay);
  }
}

void check_links(const Recording& recording) {
  const std::vector<size_t> forwards = forward_ops(recording);
  size_t replayed = 0;
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    const auto& op = recording.ops[i];
    if (op.phase != OpPhase::kReplay || !op.is_seen) continue;
    ++replayed;
    INFO("op " << i << " " << recording.text(op.name));
    REQUIRE(forwards[i] != kNoOp);
    const auto& forward = recording.ops[forwards[i]];
    CHECK(forward.phase == OpPhase::kForward);
    CHECK(forward.name == op.name);
    CHECK(forward.call == 0);
    CHECK(!op.threw);
    if (op.results.empty()) continue;  // the replay stopped in this op
    REQUIRE(forward.results.size() == op.results.size());
    for (size_t r = 0; r < op.results.size(); ++r)
      CHECK(recording.layouts[forward.results[r].layout].sizes ==
            recording.layouts[op.results[r].layout].sizes);
  }
  CHECK(replayed > 0);
}

/// Checks the blocks that are alive at the peak.
void check_peak(const Recording& recording, int64_t metered) {
  const std::vector<MemoryBlock> blocks = memory_blocks(recording);
  const std::vector<AliveByKind> alive = alive_by_kind(recording, blocks);
  const size_t peak = peak_of(alive);
  REQUIRE(peak != MemoryBlock::kNone);
  int64_t total = 0;
  int64_t of_ops = 0;
  for (const MemoryBlock& block : blocks) {
    if (!block.is_alive_after(peak)) continue;
    total += block.bytes;
    if (block.op != MemoryBlock::kNone && block.line != 0) of_ops += block.bytes;
  }
  CHECK(total == metered);
  CHECK(total == alive[peak].total());
  CHECK(total == summary_of(recording).peak_bytes);
  CHECK(1000 * of_ops >= 999 * total);
}

TEST_CASE("Bytes at the peak have their ops and lines, replayed ops theirs of the forward",
          "[inspect][recorder]") {
  weight();  // makes the weight outside regions
  for (const Step& step : steps()) {
    INFO(step.name);
    run(step);  // tapes are compared by hashes the first time
    int64_t metered = 0;
    const Recording recording = recording_of(
        [&](Recorder&) {
          weight().mutable_grad() = at::Tensor();
          const MemoryMeter meter;
          run(step);
          metered = meter.peak_bytes(default_device());
        },
        {.source_lines = true});
    check_phases(recording);
    check_links(recording);
    check_peak(recording, metered);
    std::map<BlockKind, int64_t> kinds;
    for (const MemoryBlock& block : memory_blocks(recording)) kinds[block.kind] += block.bytes;
    CHECK(kinds[BlockKind::kReplayed] > 0);
    CHECK(kinds[BlockKind::kWeightGradient] >= 64 * 4);
    const std::string name = step.name;
    const bool saves = name.find("SAVE") == 0 || name.find("rule") == 0;
    CHECK((kinds[BlockKind::kKept] > 0) == saves);
  }
}

TEST_CASE("A recording has arguments that are no tensors", "[inspect][recorder]") {
  const Recording recording = recording_of([](Recorder&) {
    const at::Tensor x = torch::ones({4, 8});
    at::gelu(x, "tanh").sum(/*dim=*/{-1}, /*keepdim=*/true, at::kDouble);
  });
  std::map<std::string, std::vector<RecordedValue>> values;
  for (const auto& op : recording.ops) {
    if (op.depth == 0) values[recording.text(op.name)] = op.values;
  }
  REQUIRE(values["aten::gelu"].size() == 1);
  CHECK(values["aten::gelu"][0].kind == ValueKind::kText);
  CHECK(recording.text(static_cast<StringId>(values["aten::gelu"][0].bits)) == "tanh");
  const std::vector<RecordedValue> expected = {
      {ValueKind::kList, 1},
      {ValueKind::kInt, static_cast<uint64_t>(-1)},
      {ValueKind::kBool, 1},
      {ValueKind::kInt, static_cast<uint64_t>(at::kDouble)}};
  CHECK((values["aten::sum.dim_IntList"] == expected));
}

TEST_CASE("Ops that a replay leaves out are told from those that it runs", "[inspect][recorder]") {
  const at::Tensor w = torch::ones({4, 4}).requires_grad_();
  const auto fn = [&](const at::Tensor& x) {
    const NameScope scope("layer");
    const auto call = [](const at::Tensor& t) { return t.exp(); };
    const at::Tensor y = (x.sin().mm(w) + 1).tanh().matmul(w);
    return native_op(call, "call", Policy::kSave)(y).cos();
  };
  const auto summary_by = [&](const PolicyTable& table) {
    return summary_of(recording_of([&](Recorder&) {
      const at::Tensor x = torch::ones({4, 4}).requires_grad_();
      checkpoint({.name = "block", .policy = make_policy(table)})(fn)(x).sum().backward();
    }));
  };
  const RecordingSummary plain = summary_by({});
  const RecordingSummary saved = summary_by(PolicyTable().op("aten::mm", Policy::kSave));
  CHECK(plain.left_out == 0);
  CHECK(saved.left_out == 2);
  // The second product is inside matmul, which the replay runs to see which ops it calls.
  CHECK(saved.regions.at(0).replay.ops == plain.regions.at(0).replay.ops - 1);
  CHECK(saved.regions.at(0).forward.ops == plain.regions.at(0).forward.ops);
  // The result of the product is kept, since the replay's addition reads it.
  REQUIRE(!saved.regions.at(0).kept.empty());
  const auto& kept = saved.regions.at(0).kept;
  const auto of_mm = std::find_if(kept.begin(), kept.end(), [](const KeptTotals& totals) {
    return totals.call == "layer/aten::mm#* (SAVE)";
  });
  REQUIRE(of_mm != kept.end());
  CHECK(of_mm->blocks >= 1);
}

TEST_CASE("A replay that differs is recorded with the op that it stopped at",
          "[inspect][recorder]") {
  int calls = 0;
  const auto fn = [&](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    return ++calls == 1 ? y.exp().tanh() : y.tanh().exp();
  };
  const Recording recording = recording_of([&](Recorder&) {
    const at::Tensor x = torch::ones({4, 8}).requires_grad_();
    const at::Tensor loss = checkpoint({.name = "differs"})(fn)(x).sum();
    CHECK_THROWS_AS(loss.backward(), ReplayMismatch);
  });
  REQUIRE(recording.replays.size() == 1);
  CHECK(recording.replays[0].from_function);
  CHECK(recording.replays[0].threw);
  const auto threw = [](const auto& op) { return op.threw; };
  CHECK(std::count_if(recording.ops.begin(), recording.ops.end(), threw) == 1);
  const auto& op = *std::find_if(recording.ops.begin(), recording.ops.end(), threw);
  CHECK(recording.text(op.name) == "aten::tanh");
  CHECK(op.is_seen);
  CHECK(op.phase == OpPhase::kReplay);
  CHECK(op.region == recording.replays[0].region);
}

TEST_CASE("Nodes know the ops that made them, and threads have names", "[inspect][recorder]") {
  const Recording recording = recording_of([](Recorder&) {
    const at::Tensor x = torch::ones({4, 8}).requires_grad_();
    at::linear(x.sin(), weight().slice(0, 0, 8)).cos().sum().backward();
  });
  std::map<std::string, std::string> makers;
  const std::vector<size_t> ops = ops_of_nodes(recording);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i] != kNoOp)
      makers[recording.text(recording.nodes[i].name)] = recording.text(recording.ops[ops[i]].name);
  }
  CHECK(makers["SinBackward0"] == "aten::sin");
  CHECK(makers["CosBackward0"] == "aten::cos");
  CHECK(makers["MmBackward0"] == "aten::mm");
  CHECK(makers["TBackward0"] == "aten::t");
  CHECK(makers["SumBackward0"] == "aten::sum");
  REQUIRE(!recording.threads.empty());
  CHECK(recording.threads[0].torch_thread != 0);
  CHECK(!recording.text(recording.threads[0].name).empty());
}

}  // namespace
}  // namespace remat
