// SPDX-License-Identifier: BSD-3-Clause

// The first op in which two runs differ, whatever their addresses, times and regions.
#include <string>
#include <utility>
#include <vector>

#include <remat/recording/recording_diff.h>

#include "recording/diff_programs.h"
#include "support/catch.h"

using remat::DifferenceCause;
using remat::RecordedTensor;
using remat::Recording;
using remat::RecordingDifference;
using remat::test::RecordedProgram;

namespace {

/// A step: two ops outside, a region of two ops, backward.
Recording run_of(uint64_t base, bool replays, const std::string& last = "aten::div",
                 bool saves_other = false) {
  RecordedProgram program(base);
  const RecordedTensor w = program.tensor({4, 4}, "float32", true);
  const RecordedTensor x = program.op("aten::randn", {});
  if (replays) program.begin_region(7);
  const RecordedTensor a = program.op("aten::sin", {x});
  const RecordedTensor b = program.op("aten::mul.Tensor", {a, w});
  if (replays) program.end_region();
  program.op("aten::sum", {b});
  program.begin_backward();
  RecordedTensor saved = a;
  if (replays) {
    program.begin_replay(7);
    saved = program.op("aten::sin", {x});
    if (saves_other) saved = program.op("aten::mul.Tensor", {saved, w});
    program.end_replay();
  }
  const RecordedTensor gradient = program.op("aten::mul.Tensor", {b, saved});
  program.phase = remat::OpPhase::kOutside;
  program.op(last, {w, gradient});
  return program.recording;
}

TEST_CASE("Runs that do the same at other addresses and times, with and without regions, are equal",
          "[recording]") {
  const Recording plain = run_of(1000, false);
  CHECK_FALSE(remat::first_difference(plain, run_of(777000, false)));
  const Recording checkpointed = run_of(5000, true);
  CHECK_FALSE(remat::first_difference(plain, checkpointed));
  CHECK_FALSE(remat::first_difference(checkpointed, plain));
  CHECK_FALSE(remat::first_difference(checkpointed, run_of(9000, true)));
}

TEST_CASE("A recomputed value has the identity of the value of the forward", "[recording]") {
  const Recording again = run_of(5000, true, "aten::div", true);
  const auto found = remat::first_difference(run_of(1000, false), again);
  REQUIRE(found);
  CHECK(found->cause == DifferenceCause::kInsideTensor);
  CHECK(again.ops[found->second].phase == remat::OpPhase::kBackward);
  CHECK_THAT(found->first_words, ContainsSubstring("on cpu of op 1)"));
  CHECK_THAT(found->second_words, ContainsSubstring("on cpu of op 2)"));
}

TEST_CASE("The first op in which two runs differ", "[recording]") {
  const auto found = remat::first_difference(run_of(1000, false), run_of(5000, true, "aten::mul"));
  REQUIRE(found);
  CHECK(found->cause == DifferenceCause::kBranch);
  CHECK(found->number == 4);
  CHECK(found->thread == 0);
  CHECK(found->region.empty());
  CHECK(found->replay == RecordingDifference::kNone);
  CHECK(
      found->first_words ==
      "aten::div(float32 [4, 4] on cpu requires grad from outside #0, float32 [4, 4] on cpu of op "
      "0 of backward)");
  CHECK_THAT(found->second_words, ContainsSubstring("aten::mul("));
  REQUIRE(found->before.size() == 3);
  CHECK(found->before[2] == "aten::sum(float32 [4, 4] on cpu of op 2)");
}

TEST_CASE("A replay's copy counts as the outside tensor when two runs are compared",
          "[recording]") {
  const auto run = [](uint64_t base, bool copies) {
    RecordedProgram program(base);
    const RecordedTensor statistics = program.tensor();
    if (copies) program.begin_region(7);
    program.op("aten::sin", {statistics});
    if (copies) program.end_region();
    program.begin_backward();
    RecordedTensor read = statistics;
    if (copies) {
      program.begin_replay(7);
      read = program.op("aten::sin", {program.op("aten::clone", {statistics})});
      program.end_replay();
    }
    program.op("aten::exp", {read});
    return program.recording;
  };
  CHECK_FALSE(remat::first_difference(run(1000, false), run(3000, true)));
  CHECK_FALSE(remat::first_difference(run(1000, true), run(3000, false)));
}

/// Two sins, then two exps on the same tensors: swapped if `swapped`, after a free if `frees`.
Recording reads(uint64_t base, bool swapped, bool frees) {
  RecordedProgram program(base);
  RecordedTensor a = program.tensor();
  RecordedTensor b = program.tensor();
  program.op("aten::sin", {a});
  program.op("aten::sin", {b});
  if (frees) {
    program.memory(a, -64);
    program.memory(b, -64);
  }
  if (swapped) std::swap(a, b);
  program.op("aten::exp", {a});
  program.op("aten::exp", {b});
  return program.recording;
}

TEST_CASE("A tensor from outside is known again, unless its memory has been freed", "[recording]") {
  CHECK_FALSE(remat::first_difference(reads(1000, false, false), reads(2000, false, false)));
  const auto found = remat::first_difference(reads(1000, false, false), reads(2000, true, false));
  REQUIRE(found);
  CHECK(found->cause == DifferenceCause::kOutsideTensor);
  CHECK(found->number == 2);
  CHECK_THAT(found->second_words, ContainsSubstring("from outside #1"));
  CHECK_FALSE(remat::first_difference(reads(1000, false, true), reads(2000, true, true)));
}

TEST_CASE("Parts of a composite op are its own, and its results differ where theirs do",
          "[recording]") {
  const auto run = [](uint64_t base, const std::string& inner, const std::string& dtype) {
    RecordedProgram program(base);
    const RecordedTensor x = program.tensor();
    const RecordedTensor y = program.tensor({4, 4}, dtype);
    const size_t outer = program.recording.ops.size();
    program.add("aten::linear", {x}, {}, {y});
    program.add(inner, {x}, {}, {y}).depth = 1;
    program.recording.ops[outer].end_ns = program.recording.ops.back().end_ns + 1;
    program.add("aten::view", {y}, {}, {y});
    program.op("aten::exp", {y});
    return program.recording;
  };
  const Recording first = run(1000, "aten::addmm", "float32");
  CHECK_FALSE(remat::first_difference(first, run(3000, "aten::mm", "float32")));
  const auto found = remat::first_difference(first, run(3000, "aten::addmm", "bfloat16"));
  REQUIRE(found);
  CHECK(found->cause == DifferenceCause::kDtype);
  CHECK(found->number == 0);
}

TEST_CASE("An op more in the middle is told from a branch", "[recording]") {
  const auto run = [](const std::vector<std::string>& names) {
    RecordedProgram program;
    for (const std::string& name : names) program.op(name, {});
    return program.recording;
  };
  const Recording first = run({"sin", "cos", "exp", "tan"});
  const auto cause = [&](const std::vector<std::string>& names) {
    return remat::first_difference(first, run(names))->cause;
  };
  CHECK(cause({"sin", "neg", "abs", "cos", "exp", "tan"}) == DifferenceCause::kExtraOp);
  CHECK(cause({"sin", "exp", "tan"}) == DifferenceCause::kMissingOp);
  CHECK(cause({"sin", "exp", "cos", "tan"}) == DifferenceCause::kOrder);
  CHECK(cause({"sin", "neg", "abs", "tan"}) == DifferenceCause::kBranch);
  CHECK(cause({"sin", "cos", "exp"}) == DifferenceCause::kMissingOp);
}

}  // namespace
