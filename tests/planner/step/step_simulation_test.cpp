// SPDX-License-Identifier: BSD-3-Clause

// Peaks and reruns of steps that are small enough to count by hand.
#include <stdexcept>

#include <remat/planner/measuring_cuts.h>
#include <remat/planner/step_cuts.h>

#include "planner/step/step_models.h"
#include "support/catch.h"

using remat::StepCuts;
using remat::StepNode;
using remat::StepPhase;
using remat::StepProfile;
using remat::StepRecord;
using remat::StepSimulation;
using remat::StepSlot;
using remat::StepValue;
using remat::test::line_step;

namespace {

/// Returns cuts that keep the first results of these records.
StepCuts kept(std::vector<int32_t> records) {
  StepCuts cuts;
  for (const int32_t j : records) cuts.keep.push_back({j, 0});
  return cuts;
}

TEST_CASE("The forward holds what is kept after the program has let go", "[memory_plan]") {
  // Values 1 to 3 are saved. The program holds value 1 until record 1, so the plan holds it from
  // record 2 on, and value 2 from record 3 on. Value 3 is the program's until the end of record 3.
  const StepSimulation result = remat::simulate_step(line_step(4), kept({0, 1, 2}));
  CHECK(result.forward_peak_bytes == 20);
  CHECK(result.kept_bytes == 30);
  CHECK(result.peak_bytes == 30);
  CHECK(result.rerun_us == 0);
  CHECK(result.peak.phase == StepPhase::kForward);
  CHECK(result.peak.record == 4);  // after the last record
}

TEST_CASE("Tensors that the program holds at the end are counted once", "[memory_plan]") {
  StepProfile profile = line_step(3);
  profile.values[1].held_until = 3;
  profile.end_bytes = 10;
  const StepSimulation result = remat::simulate_step(profile, kept({0, 1}));
  CHECK(result.kept_bytes == 10);
  CHECK(result.peak_bytes == 20);
}

/// Returns line_step(3), whose result, value 3, the program holds when the forward has ended.
StepProfile with_result(int32_t released) {
  StepProfile profile = line_step(3);
  profile.values[3].held_until = 3;
  profile.values[3].released = released;
  profile.end_bytes = 10;
  return profile;
}

TEST_CASE("Tensors that the program lets go are freed with the node that began last",
          "[memory_plan]") {
  const auto peak_in = [](int32_t node, int32_t released) {
    StepProfile profile = with_result(released);
    profile.nodes[node].inside_bytes = 100;
    return remat::simulate_step(profile, kept({0, 1})).peak_bytes;
  };
  // Alive are values 1 to 3; node 0 frees value 2, node 1 frees value 1.
  CHECK(peak_in(0, 0) == 120);
  CHECK(peak_in(0, 1) == 130);
  CHECK(peak_in(0, -1) == 130);
  CHECK(peak_in(1, 0) == 110);
  CHECK(peak_in(1, 1) == 110);
  CHECK(peak_in(1, 2) == 120);
  CHECK(peak_in(2, 2) == 100);
  CHECK(peak_in(2, 3) == 110);
  CHECK(peak_in(2, -1) == 110);
}

TEST_CASE(
    "Allocations after the forward coexist with tensors that the program frees before backward",
    "[memory_plan]") {
  StepProfile profile = with_result(0);
  profile.gap_bytes = 7;
  profile.nodes[0].inside_bytes = 5;
  const StepSimulation result = remat::simulate_step(profile, kept({0, 1}));
  CHECK(result.kept_bytes == 20);
  CHECK(result.peak_bytes == 37);
  CHECK(result.peak_fixed_bytes == 17);
  CHECK(result.peak.phase == StepPhase::kForward);
  CHECK(result.peak.record == 3);
  CHECK(result.forward_peak_bytes == 10);
  CHECK(result.top_units[0].peak_bytes == 25);
}

/// Returns the peaks of steps in which node 1 and node 2 take 100 bytes; the program releases value
/// 1.
std::pair<int64_t, int64_t> peaks_of_held(int32_t released, const StepCuts& cuts) {
  std::vector<int64_t> peaks;
  for (const int32_t node : {1, 2}) {
    StepProfile profile = line_step(3);
    profile.values[1].held_until = 3;
    profile.values[1].released = released;
    profile.end_bytes = 10;
    profile.nodes[node].inside_bytes = 100;
    peaks.push_back(remat::simulate_step(profile, cuts).peak_bytes);
  }
  return {peaks[0], peaks[1]};
}

TEST_CASE("Memory that remat holds longer than the program goes with its last dependent",
          "[memory_plan]") {
  // Value 1 is kept until node 1, in the memory that the program holds.
  CHECK(peaks_of_held(0, kept({0, 1})) == std::pair<int64_t, int64_t>(110, 100));
  CHECK(peaks_of_held(2, kept({0, 1})) == std::pair<int64_t, int64_t>(110, 100));
  CHECK(peaks_of_held(3, kept({0, 1})) == std::pair<int64_t, int64_t>(110, 110));
  // If recomputed, value 1 has memory of its own until node 1.
  CHECK(peaks_of_held(0, {}) == std::pair<int64_t, int64_t>(110, 100));
  CHECK(peaks_of_held(2, {}) == std::pair<int64_t, int64_t>(120, 100));
  CHECK(peaks_of_held(3, {}) == std::pair<int64_t, int64_t>(120, 110));
}

TEST_CASE("Ops on which no slot depends are not run again", "[memory_plan]") {
  // Value 3, the result of record 2, is not saved.
  const StepSimulation with = remat::simulate_step(line_step(3), kept({0, 1, 2}));
  const StepSimulation without = remat::simulate_step(line_step(3), kept({0, 1}));
  CHECK(with.peak_bytes == without.peak_bytes);
  CHECK(with.kept_bytes == 20);
}

TEST_CASE("A segment's replay makes all that its slots hold", "[memory_plan]") {
  // Values 1 to 3 are recomputed when the first node asks: 30 bytes, in 1 + 2 + 4 us.
  const StepSimulation result = remat::simulate_step(line_step(4), {});
  CHECK(result.peak_bytes == 30);
  CHECK(result.rerun_us == 7);
  CHECK(result.runs == std::vector<int32_t>{1, 1, 1, 0});
  CHECK(result.peak.phase == StepPhase::kReplay);
  CHECK(result.peak.record == 2);
}

TEST_CASE("A node that reads only memory from outside has its segment replayed", "[memory_plan]") {
  // Segment 0 makes value 1, which node 1 frees; segment 1 saves value 2, which crosses and is
  // freed with node 0.
  StepProfile profile = line_step(3);
  StepCuts cuts = kept({1});
  cuts.positions = {2};
  const StepSimulation late = remat::simulate_step(profile, cuts);
  CHECK(late.peak_bytes == 10);
  // Node 0 now reads a slot of record 1 that is from outside, so segment 0 runs beside value 2.
  profile.slots.push_back({-1, 1, 0});
  const StepSimulation early = remat::simulate_step(profile, cuts);
  CHECK(early.peak_bytes == 20);
  CHECK(early.peak.phase == StepPhase::kReplay);
  CHECK(early.peak.node == 0);
  CHECK(early.replays == late.replays);
}

TEST_CASE("Segments are whole one at a time", "[memory_plan]") {
  // Cut after record 1: value 2 crosses. The second segment's slots hold value 2, which is given,
  // and value 3: 20 bytes. Then value 3 and value 2 are freed, and value 1 is made: 10.
  StepCuts cuts = kept({1});
  cuts.positions = {2};
  const StepSimulation result = remat::simulate_step(line_step(4), cuts);
  CHECK(result.kept_bytes == 10);
  CHECK(result.peak_bytes == 20);
  CHECK(result.rerun_us == 1 + 4);
  REQUIRE(result.top_units.size() == 2);
  CHECK(result.top_units[0].peak_bytes == 10);
  CHECK(result.top_units[1].peak_bytes == 20);
}

TEST_CASE("A replay that lacks a value is a defect", "[memory_plan]") {
  StepCuts cuts;
  cuts.positions = {2};
  CHECK_THROWS_WITH(remat::simulate_step(line_step(4), cuts),
                    "[memory plan] cuts: expected value 2, of record 1 (op1), among what is kept, "
                    "since the replay of records 2 to 3 needs it, got a plan without it. Report "
                    "this.");
}

TEST_CASE("A value that crosses is kept by the innermost group around its readers",
          "[memory_plan]") {
  // Segments of one record; a group of the first two. Value 1 belongs to the group, whose replay
  // makes it. Value 2 crosses out of the group, so the forward keeps it.
  StepCuts cuts = kept({0, 1});
  cuts.positions = {1, 2};
  cuts.groups = {{0, 2}};
  const StepSimulation result = remat::simulate_step(line_step(3), cuts);
  CHECK(result.kept_bytes == 10);
  CHECK(result.peak_bytes == 10);  // Value 2 has gone when the group makes value 1.
  CHECK(result.rerun_us == 1);     // Segment 1's slot holds value 1, which the group has.
  CHECK(result.replays == 4);      // Segments 2, 1 and 0, of which 0 runs no record, and the group.
}

TEST_CASE("Nested groups run again once for each level", "[memory_plan]") {
  // Four segments, groups [0, 3) and [0, 2) in it. Value 1 belongs to the inner one, value 2 to
  // the outer one, value 3 to the forward. The outer group makes value 2 from records 0 and 1, the
  // inner one value 1 from record 0.
  StepCuts cuts = kept({0, 1, 2});
  cuts.positions = {1, 2, 3};
  cuts.groups = {{0, 2}, {0, 3}};
  const StepSimulation result = remat::simulate_step(line_step(4), cuts);
  CHECK(result.runs == std::vector<int32_t>{2, 1, 0, 0});
  CHECK(result.kept_bytes == 10);
  // Node 0 frees value 3. The outer group holds value 1 while it makes value 2.
  CHECK(result.peak_bytes == 20);
}

TEST_CASE("A kept value goes with the last slot that depends on it", "[memory_plan]") {
  // Two segments of two records; value 2 crosses. The added slot holds value 3 to the end. Value 3
  // is made from value 2, which therefore is kept to the end, too.
  StepProfile profile = line_step(4);
  StepCuts cuts = kept({1});
  cuts.positions = {2};
  profile.slots.push_back({3, 3, -1});
  // Values 1 to 3 are alive at the end.
  CHECK(remat::simulate_step(profile, cuts).peak_bytes == 30);
}

TEST_CASE("Backward's own bytes count before, in and after a node", "[memory_plan]") {
  StepProfile profile = line_step(3);
  profile.nodes[0].before_bytes = 5;  // while the replay makes values 1 and 2
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 25);
  profile.nodes[0].inside_bytes = 7;
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 27);
  profile.nodes[0].after_bytes = 18;  // value 2 has been freed
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 28);
  CHECK(remat::simulate_step(profile, {}).peak_fixed_bytes == 18);
}

TEST_CASE("A workspace and a result that nobody needs are there while the record runs",
          "[memory_plan]") {
  StepProfile profile = line_step(3);
  profile.records[1].workspace_bytes = 4;
  profile.values.push_back({1, 4, 100, 1});
  profile.records[1].makes.push_back(4);
  const StepSimulation result = remat::simulate_step(profile, {});
  CHECK(result.peak_bytes == 10 + 10 + 100 + 4);
}

TEST_CASE("An op that looks only at shapes asks for nothing", "[memory_plan]") {
  StepProfile profile = line_step(3);
  profile.records[1].reads_data = false;
  profile.slots.erase(profile.slots.begin() + 1);  // value 1 is not saved
  const StepSimulation result = remat::simulate_step(profile, {});
  CHECK(result.runs == std::vector<int32_t>{0, 1, 0});
}

/// Returns a step in which record 1 writes value 1 in place, which becomes value 2.
StepProfile with_write() {
  StepProfile profile = line_step(2);
  profile.records[1].makes.clear();
  profile.records[1].writes = {{1, 2}};
  profile.values[2] = {1, 1, 10, 1};
  profile.slots = {{2, 1, 0}};
  return profile;
}

TEST_CASE("A write passes memory on that nobody needs as it was", "[memory_plan]") {
  const StepSimulation result = remat::simulate_step(with_write(), {});
  CHECK(result.peak_bytes == 10);
  CHECK(result.runs == std::vector<int32_t>{1, 1});
}

TEST_CASE("Without remat saved tensors share their storage, but for copies of what is overwritten",
          "[memory_plan]") {
  StepProfile profile = with_write();
  CHECK(remat::plain_peak_bytes(profile) == 10);  // value 2 is in the storage of value 1
  profile.slots.push_back({1, 0, 1});  // value 1, saved in the same memory before the write
  CHECK(remat::plain_peak_bytes(profile) == 10);
  profile.slots.push_back({1, 1, 1});  // value 1, saved by the op that overwrites it, as a copy
  CHECK(remat::plain_peak_bytes(profile) == 20);
  profile.records[1].forward_bytes = 5;  // Held by the program; autograd's copy exists by then.
  CHECK(remat::plain_peak_bytes(profile) == 20);
  profile.nodes[0].inside_bytes = 7;
  CHECK(remat::plain_peak_bytes(profile) == 27);
  profile.nodes[1].inside_bytes = 9;  // until node 1 both exist
  CHECK(remat::plain_peak_bytes(profile) == 29);
  profile.slots.resize(1);
  CHECK(remat::plain_peak_bytes(profile) == 17);  // node 0 has freed the storage
  CHECK_THROWS_AS(remat::plain_peak_bytes(StepProfile{}), std::invalid_argument);
}

TEST_CASE("Values dropped when the function returned are not recomputed", "[memory_plan]") {
  StepProfile profile = with_write();
  profile.nodes[0].inside_bytes = 7;
  profile.records[1].forward_bytes = 10;
  CHECK(remat::plain_peak_bytes(profile) == 17);
  CHECK(remat::simulate_step(profile, {}).runs == std::vector<int32_t>{1, 1});
  profile.slots[0].node = remat::StepSlot::kDropped;
  CHECK(remat::plain_peak_bytes(profile) == 10);  // the peak of the forward
  CHECK(remat::simulate_step(profile, {}).runs == std::vector<int32_t>{0, 0});
}

TEST_CASE("A step whose values only pass on is cut for measuring where that takes least",
          "[memory_plan]") {
  StepProfile profile = line_step(25);
  StepCuts cuts;
  cuts.positions = remat::measuring_cuts(profile);
  for (const int32_t p : cuts.positions) cuts.keep.push_back({p - 1, 0});
  REQUIRE_FALSE(cuts.positions.empty());
  CHECK(remat::simulate_step(profile, cuts).peak_bytes <= 100);
  CHECK(remat::plain_peak_bytes(profile) >= 240);
}

TEST_CASE("Without remat a branch that dies with the function is held as long as its last value",
          "[memory_plan]") {
  // Value 3 dies with record 2, and so do the tensors that were saved for it.
  StepProfile profile = line_step(4);
  profile.records[3].reads = {0};
  profile.records[3].forward_bytes = 3;
  profile.values[3].held_until = 2;
  profile.slots = {{1, 1, StepSlot::kDropped}, {2, 2, StepSlot::kDropped}};
  CHECK(remat::plain_peak_bytes(profile) == 10);
  profile.values[3].held_until = 3;
  CHECK(remat::plain_peak_bytes(profile) == 23);
}

TEST_CASE("A kept value's memory is freed with the last kept value of its storage",
          "[memory_plan]") {
  StepProfile profile = with_write();
  profile.slots.push_back({1, 1, 1});
  profile.nodes[1].inside_bytes = 5;
  CHECK(remat::simulate_step(profile, kept({1})).peak_bytes == 20);
  StepCuts both = kept({0, 1});
  CHECK(remat::simulate_step(profile, both).peak_bytes == 25);
}

TEST_CASE("A tensor that the program holds is freed once the program lets go and no node needs it",
          "[memory_plan]") {
  StepProfile profile = with_write();
  profile.end_bytes = 10;
  for (const int v : {1, 2}) profile.values[v].held_until = 2;
  for (const int v : {1, 2}) profile.values[v].released = 0;
  profile.nodes[0].inside_bytes = 3;
  profile.nodes[1].inside_bytes = 4;
  CHECK(remat::plain_peak_bytes(profile) == 13);  // Node 0 needs value 2.
  profile.slots[0].node = 1;
  CHECK(remat::plain_peak_bytes(profile) == 14);
  profile.slots.clear();
  CHECK(remat::plain_peak_bytes(profile) == 10);
}

TEST_CASE("A write copies memory that a slot holds, is given or is from outside", "[memory_plan]") {
  StepProfile held = with_write();
  held.slots.push_back({1, 1, 1});
  CHECK(remat::simulate_step(held, {}).peak_bytes == 20);

  // Segment 1 starts from value 1, which is kept as a copy. Its replay writes value 2 into a second
  // copy.
  StepCuts cuts = kept({0});
  cuts.positions = {1};
  const StepSimulation given = remat::simulate_step(with_write(), cuts);
  CHECK(given.peak_bytes == 20);
  CHECK(given.runs == std::vector<int32_t>{0, 1});
}

TEST_CASE("Copies are kept of outside memory that the step overwrites", "[memory_plan]") {
  // Record 1 writes 6 bytes from outside and saves them; of their old contents, 4 bytes are kept.
  StepProfile profile = with_write();
  profile.records[1].reads = {0};
  profile.records[1].writes = {{0, 2}};
  profile.values[0] = {-1, 0, 4, 2};
  profile.values[2] = {1, 0, 6, 2};
  const StepSimulation rerun = remat::simulate_step(profile, {});
  CHECK(rerun.kept_bytes == 4);
  CHECK(rerun.peak_bytes == 4 + 6);
  // The written value is kept as a copy from the write on; the old bytes are not kept.
  const StepSimulation kept_after = remat::simulate_step(profile, kept({1}));
  CHECK(kept_after.forward_peak_bytes == 6);
  CHECK(kept_after.kept_bytes == 6);
  CHECK(kept_after.peak_bytes == 6);
  CHECK(kept_after.rerun_us == 0);
}

/// Record 0 reads 6 bytes from outside; since record 1 overwrites them, the old contents of 4 bytes
/// are kept. `saved`: the value that the first node frees.
StepProfile with_part_kept(int32_t saved) {
  StepProfile profile = line_step(2);
  profile.values[0] = {-1, 0, 4, 2};
  profile.records[1].reads = {0};
  profile.records[1].makes.clear();
  profile.records[1].writes = {{0, 2}};
  profile.values[2] = {1, 0, 6, 2};
  profile.slots = {{saved, 1, 0}};
  return profile;
}

TEST_CASE("Memory from outside that is kept in parts is put together for a replay",
          "[memory_plan]") {
  StepProfile profile = with_part_kept(1);
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 4 + 10);  // read directly: kept whole
  profile.values[0].unpacked_bytes = 6;
  const StepSimulation result = remat::simulate_step(profile, {});
  CHECK(result.kept_bytes == 4);
  CHECK(result.peak_bytes == 4 + 6 + 10);
  CHECK(result.peak.phase == StepPhase::kReplay);
  profile.nodes[0].inside_bytes = 8;  // The bytes put together are freed by now.
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 4 + 10 + 8);
  profile.nodes[0].inside_bytes = 0;
  profile.records[0].reads_data = false;
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 10);
  CHECK(remat::simulate_step(profile, kept({0})).peak_bytes == 10);  // Nothing runs again.
}

TEST_CASE("A write takes on the memory that a replay has put together", "[memory_plan]") {
  StepProfile profile = with_part_kept(2);
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 4 + 6);
  profile.values[0].unpacked_bytes = 6;
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 4 + 6);
  profile.slots.push_back({1, 1, 1});  // Record 0 runs too, and reads the same memory.
  CHECK(remat::simulate_step(profile, {}).peak_bytes == 4 + 6 + 10);
}

TEST_CASE("The kept value of a storage that is written later has memory of its own",
          "[memory_plan]") {
  StepProfile profile = with_write();
  profile.slots.push_back({1, 0, 1});
  StepCuts cuts = kept({0, 1});  // value 1, a copy from record 1 on, and value 2 in its storage
  const StepSimulation result = remat::simulate_step(profile, cuts);
  CHECK(result.forward_peak_bytes == 10);
  CHECK(result.kept_bytes == 20);
  CHECK(result.rerun_us == 0);
}

TEST_CASE("A written storage that the program lets go holds its newest value only",
          "[memory_plan]") {
  StepProfile profile = with_write();
  profile.slots.push_back({1, 0, 1});
  for (const int32_t v : {1, 2}) {
    profile.values[v].held_until = 2;
    profile.values[v].released = 0;
  }
  profile.end_bytes = 10;
  const StepCuts cuts = kept({0, 1});  // value 1, a copy until node 1, and value 2 until node 0
  CHECK(remat::simulate_step(profile, cuts).kept_bytes == 10);
  profile.nodes[0].inside_bytes = 100;
  CHECK(remat::simulate_step(profile, cuts).peak_bytes == 120);
  profile.nodes[1].inside_bytes = 200;
  CHECK(remat::simulate_step(profile, cuts).peak_bytes == 210);
  CHECK(remat::simulate_step(profile, kept({0})).peak_bytes == 210);
  profile.values[1].released = profile.values[2].released = 2;
  CHECK(remat::simulate_step(profile, cuts).peak_bytes == 220);
}

TEST_CASE("Damaged cuts are refused by their place", "[memory_plan]") {
  StepCuts cuts;
  cuts.positions = {2, 2};
  CHECK_THROWS_WITH(cuts.validate(line_step(4), "c"),
                    "[memory plan] c: positions[1]: expected a record after 2 and before 4, got 2. "
                    "Plan for this step.");
  cuts = {};
  cuts.positions = {1, 2, 3};
  cuts.groups = {{0, 2}, {1, 3}};
  CHECK_THROWS_WITH(cuts.validate(line_step(4), "c"),
                    "[memory plan] c: groups[1]: expected a group inside of [0, 2], around it or "
                    "apart, got [1, 3]. Plan for this step.");
  cuts.groups = {{0, 1}};
  CHECK_THROWS_WITH(cuts.validate(line_step(4), "c"),
                    "[memory plan] c: groups[0]: expected two or more of 4 segments, got [0, 1]. "
                    "Plan for this step.");
  cuts = kept({4});
  CHECK_THROWS_WITH(cuts.validate(line_step(4), "c"),
                    "[memory plan] c: keep[0]: expected a record and one of its results, got "
                    "record 4, result 0. Plan for this step.");
}

}  // namespace
