// SPDX-License-Identifier: BSD-3-Clause

// The maker of each block of memory, and the op of the forward for each op of a replay.
#include <string>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>
#include <remat/recording/replay_links.h>

#include "support/catch.h"

using remat::BlockKind;
using remat::kNoOp;
using remat::MemoryBlock;
using remat::OpEvent;
using remat::OpPhase;
using remat::PeakRow;
using remat::Recording;

namespace {

constexpr remat::StringId kSin = 1;
constexpr remat::StringId kMul = 2;
constexpr remat::StringId kLine = 3;
constexpr remat::StringId kCall = 4;
constexpr remat::StringId kAccumulateGrad = 5;
constexpr remat::StringId kNode = 6;
constexpr remat::StringId kCpu = 7;

/// Adds events of one thread, each later than the one before.
class Builder {
 public:
  Builder() {
    recording.strings = {"",
                         "aten::sin",
                         "aten::mul",
                         "model.py:3 forward",
                         "kept",
                         "torch::autograd::AccumulateGrad",
                         "SinBackward0",
                         "cpu"};
    recording.layouts = {{}};
    recording.threads = {{{0, 9, 0}, 0}};
  }

  /// Adds an op and returns its index.
  size_t op(remat::StringId name, OpPhase phase, uint64_t region) {
    OpEvent op;
    op.begin_ns = ++now_;
    op.end_ns = now_ += 10;
    op.number = recording.ops.size() + 1;
    op.name = name;
    op.phase = phase;
    op.region = region;
    op.is_seen = region != 0;
    recording.ops.push_back({op, 0});
    return recording.ops.size() - 1;
  }

  /// Adds an allocation (or a free) in that op; kNoOp: outside any op.
  void memory(uint64_t address, int64_t bytes, size_t op = kNoOp) {
    const remat::TimeNs time_ns = op == kNoOp ? ++now_ : recording.ops[op].end_ns;
    recording.memory.push_back({{time_ns, address, bytes, kCpu, op == kNoOp ? 0 : op + 1}, 0});
  }

  void region(uint64_t region, uint64_t parent) {
    recording.regions.push_back(
        {{++now_, region, region, parent, parent == 0 ? 0U : 1U, kLine}, 0});
  }

  void save(uint64_t region, uint32_t slot, uint64_t address, bool is_kept) {
    recording.saves.push_back({{++now_, region, slot, {0, address, 0}, false, is_kept}, 0});
  }

  void load(uint64_t region) { recording.loads.push_back({{++now_, region, 0}, 0}); }

  /// Begins a replay, which end_replay() ends.
  void replay(uint64_t region, bool from_function) {
    recording.replays.push_back({{++now_, 0, region, from_function, false}, 0});
  }
  void end_replay() { recording.replays.back().end_ns = ++now_; }
  void node(remat::StringId name, uint64_t sequence) {
    recording.nodes.push_back({{++now_, 0, name, sequence, 9}, 0});
  }
  void end_node() { recording.nodes.back().end_ns = ++now_; }

  Recording recording;

 private:
  remat::TimeNs now_ = 0;
};

TEST_CASE("A block knows the op that made it, what for, and its line", "[recording]") {
  Builder built;
  built.region(1, 0);
  const size_t forward = built.op(kSin, OpPhase::kForward, 1);
  built.recording.ops[forward].line = kLine;
  built.recording.ops[forward].record = 0;
  built.recording.ops[forward].sequence = 30;
  built.memory(100, 8, forward);
  built.save(1, 0, 100, false);
  const size_t kept = built.op(kMul, OpPhase::kForward, 1);
  built.recording.ops[kept].call = kCall;
  built.memory(200, 16, kept);
  built.save(1, 1, 200, true);
  built.memory(300, 4);  // by no op
  built.memory(100, -8);
  built.node(kNode, 30);
  built.replay(1, false);
  const size_t again = built.op(kSin, OpPhase::kReplay, 1);
  built.recording.ops[again].record = 0;
  built.memory(100, 8, again);
  built.end_replay();
  const size_t gradient = built.op(kMul, OpPhase::kBackward, 0);
  built.memory(400, 32, gradient);
  built.end_node();
  built.node(kAccumulateGrad, OpEvent::kNoSequence);
  const size_t taken = built.op(kSin, OpPhase::kBackward, 0);
  built.recording.ops[taken].arguments = {{0, 400, 0}};
  built.end_node();
  built.memory(400, -32);

  const std::vector<MemoryBlock> blocks = memory_blocks(built.recording);
  REQUIRE(blocks.size() == 5);
  CHECK(blocks[0].kind == BlockKind::kForward);
  CHECK(blocks[0].op == forward);
  CHECK(blocks[0].slot == 0);
  CHECK(blocks[0].line == kLine);
  CHECK(blocks[0].end == 3);
  CHECK(blocks[1].kind == BlockKind::kKept);
  CHECK(blocks[1].call == kCall);
  CHECK(blocks[1].slot == 1);
  CHECK(blocks[1].end == MemoryBlock::kNone);
  CHECK(blocks[2].kind == BlockKind::kOutside);
  CHECK(blocks[2].op == MemoryBlock::kNone);
  CHECK(blocks[3].kind == BlockKind::kReplayed);
  CHECK(blocks[3].line == kLine);
  CHECK(blocks[4].kind == BlockKind::kWeightGradient);
  CHECK(blocks[4].node == 0);
  CHECK(blocks[4].line == kLine);  // the line of the node's op

  const auto alive = alive_by_kind(built.recording, blocks);
  REQUIRE(alive.size() == 7);
  CHECK(alive[2].total() == 28);
  CHECK(alive[3].bytes[static_cast<size_t>(BlockKind::kForward)] == 0);
  CHECK(peak_of(alive) == 5);
  CHECK(alive[5].total() == 16 + 4 + 8 + 32);
  CHECK(alive[6].total() == 28);
  CHECK(remat::peak_of({}) == MemoryBlock::kNone);
}

TEST_CASE("At the peak, blocks of one op and line in regions of one label are one row",
          "[recording]") {
  Builder built;
  for (const uint64_t region : {1, 2}) {
    built.region(region, 0);
    const size_t sin = built.op(kSin, OpPhase::kForward, region);
    built.recording.ops[sin].line = kLine;
    built.memory(100 * region, 8, sin);
  }
  const size_t without_line = built.op(kSin, OpPhase::kForward, 2);
  built.memory(300, 8, without_line);
  const size_t outside = built.op(kMul, OpPhase::kOutside, 0);
  built.memory(400, 64, outside);
  built.memory(500, 4);
  built.memory(500, -4);
  const std::vector<PeakRow> rows = remat::summary_of(built.recording).peak_rows;
  REQUIRE(rows.size() == 4);
  CHECK((rows[0] == PeakRow{BlockKind::kOutside, "aten::mul", "", "", 64, 1}));
  const std::string& label = built.recording.strings[kLine];
  CHECK((rows[1] == PeakRow{BlockKind::kForward, "aten::sin", label, label, 16, 2}));
  CHECK((rows[2] == PeakRow{BlockKind::kForward, "aten::sin", label, "", 8, 1}));
  CHECK((rows[3] == PeakRow{BlockKind::kOutside, "", "", "", 4, 1}));
}

TEST_CASE("Bytes that calls keep are listed by region and call, with numbered names merged",
          "[recording]") {
  Builder built;
  built.recording.strings.push_back("aten::mm#0");
  built.recording.strings.push_back("aten::mm#12");
  built.recording.strings.push_back("SAVE");
  const auto name = static_cast<remat::StringId>(built.recording.strings.size() - 3);
  const remat::StringId policy = name + 2;
  uint64_t address = 100;
  for (const uint64_t region : {1, 2}) {
    built.region(region, 0);
    for (const remat::StringId call : {kCall, name, name + 1}) {
      built.recording.calls.push_back({{0, region, call, policy}, 0});
      const size_t op = built.op(kMul, OpPhase::kForward, region);
      built.recording.ops[op].call = call;
      built.memory(address, call == kCall ? 100 : 8, op);
      built.save(region, 0, address, true);
      ++address;
    }
    built.memory(address++, 64, built.op(kSin, OpPhase::kForward, region));  // not kept
  }
  // A tensor made in a region and saved in a call of another region.
  built.region(3, 0);
  built.recording.regions.back().label = kNode;
  built.memory(address, 40, built.op(kSin, OpPhase::kForward, 1));
  built.save(3, 0, address, true);
  const auto regions = remat::summary_of(built.recording).regions;
  REQUIRE(regions.size() == 2);
  const std::vector<remat::KeptTotals> expected = {{"kept (SAVE)", 2, 200},
                                                   {"aten::mm#* (SAVE)", 4, 32}};
  CHECK((regions[0].kept == expected));
  const std::vector<remat::KeptTotals> saved = {{"", 1, 40}};
  CHECK((regions[1].kept == saved));
}

TEST_CASE("A SAVE call's result that backward reads counts as kept", "[recording]") {
  Builder built;
  built.region(1, 0);
  const size_t op = built.op(kMul, OpPhase::kForward, 1);
  built.recording.ops[op].call = kCall;
  built.memory(100, 8, op);
  built.memory(200, 8, op);
  built.memory(200, -8);  // not read by any op
  built.load(1);
  built.memory(100, -8);
  const std::vector<MemoryBlock> blocks = memory_blocks(built.recording);
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].kind == BlockKind::kKept);
  CHECK(blocks[1].kind == BlockKind::kForward);
}

TEST_CASE("Ops of a function's replay are linked in order, without what SAVE calls ran",
          "[recording]") {
  Builder built;
  built.region(1, 0);
  const size_t a = built.op(kSin, OpPhase::kForward, 1);
  const size_t saved = built.op(kMul, OpPhase::kForward, 1);
  built.recording.ops[saved].call = kCall;
  const size_t b = built.op(kMul, OpPhase::kForward, 1);
  const size_t c = built.op(kMul, OpPhase::kForward, 1);
  for (int i = 0; i < 2; ++i) {  // a graph that is retained
    built.replay(1, true);
    const size_t first = built.op(kSin, OpPhase::kReplay, 1);
    built.op(kMul, OpPhase::kReplay, 1);
    built.op(kMul, OpPhase::kReplay, 1);
    built.op(kMul, OpPhase::kReplay, 1);  // an op that the forward did not run
    built.end_replay();
    const std::vector<size_t> links = forward_ops(built.recording);
    CHECK(links[first] == a);
    CHECK(links[first + 1] == b);
    CHECK(links[first + 2] == c);
    CHECK(links[first + 3] == kNoOp);
    CHECK(links[b] == kNoOp);
  }
}

TEST_CASE("A replay of a region that an outer replay made leads to the forward", "[recording]") {
  Builder built;
  built.region(1, 0);
  built.region(2, 1);
  const size_t inner = built.op(kSin, OpPhase::kForward, 2);
  const size_t outer = built.op(kMul, OpPhase::kForward, 1);
  built.replay(1, true);
  built.region(3, 1);
  const size_t again = built.op(kSin, OpPhase::kReplay, 3);
  const size_t outer_again = built.op(kMul, OpPhase::kReplay, 1);
  built.end_replay();
  built.replay(3, true);
  const size_t twice = built.op(kSin, OpPhase::kReplay, 3);
  built.end_replay();
  const std::vector<size_t> links = forward_ops(built.recording);
  CHECK(links[again] == inner);
  CHECK(links[outer_again] == outer);
  CHECK(links[twice] == inner);
}

TEST_CASE("An op of an inner region is found by the record of an outer tape", "[recording]") {
  Builder built;
  built.region(1, 0);
  built.region(2, 1);
  const size_t forward = built.op(kSin, OpPhase::kForward, 2);
  built.recording.ops[forward].record = 0;
  built.recording.ops[forward].outer_records = {{1, 7}};
  built.replay(1, false);
  const size_t again = built.op(kSin, OpPhase::kReplay, 1);
  built.recording.ops[again].record = 7;
  built.end_replay();
  CHECK(forward_ops(built.recording)[again] == forward);
}

TEST_CASE("Regions that are said to be around each other end the search", "[recording]") {
  Builder built;
  built.region(1, 2);
  built.region(2, 1);
  built.op(kSin, OpPhase::kForward, 1);
  CHECK(forward_ops(built.recording) == std::vector<size_t>{kNoOp});
}

}  // namespace
