// SPDX-License-Identifier: BSD-3-Clause

// remat-trace as people and scripts call it.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "recording/diff_programs.h"
#include "recording/sample_recording.h"
#include "support/catch.h"
#include "tools/run_command.h"

using remat::test::Result;
using remat::test::run_command;

namespace {

Result run(const std::string& arguments) {
  return run_command(std::string("'") + REMAT_TRACE_PROGRAM + "' " + arguments + " 2>&1");
}

/// A recording in a temporary folder.
struct Sample {
  Sample()
      : folder(std::filesystem::temp_directory_path() /
               ("remat_trace" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder);
    remat::test::write(remat::test::sample_recording(0), path("step.rec"));
  }
  ~Sample() { std::filesystem::remove_all(folder); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  std::string path(const std::string& name) const { return (folder / name).string(); }

  std::filesystem::path folder;
};

size_t lines_of(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST_CASE("remat-trace tells what ran and the peak of memory", "[tools][remat_trace]") {
  const Sample sample;
  const Result result = run(sample.path("step.rec"));
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.output, ContainsSubstring("train.py\npid 42, torch 2.11.0"));
  CHECK_THAT(result.output, ContainsSubstring("forward          1       0.000\n"));
  CHECK_THAT(result.output,
             ContainsSubstring("memory: peak 0.004 MB of what was made while recording"));
  CHECK_THAT(result.output, ContainsSubstring("       MB   blocks  kind                made by\n"
                                              "    0.004        1  "));
  CHECK_THAT(result.output, ContainsSubstring("  block\n"));
}

TEST_CASE("remat-trace lists ops, filtered", "[tools][remat_trace]") {
  const Sample sample;
  const auto ops = [&](const std::string& filters) {
    return run(sample.path("step.rec") + " --ops " + filters).output;
  };
  CHECK(lines_of(ops("")) == 3);  // the header and two ops
  CHECK_THAT(
      ops("--phase forward"),
      ContainsSubstring(
          "aten::mul.Tensor(float32 [2, 3], float32 [2, 3], none) [CPU, "
          "AutogradCPU] -> float32 [2, 3]; slots 2 to 3; in call 'gate'; block; train.py\n"));
  CHECK_THAT(ops("--phase outside"), ContainsSubstring("; threw\n"));
  CHECK_THAT(ops("--op nothing"), ContainsSubstring("no op is like that\n"));
  CHECK(lines_of(ops("--op mul")) == 3);
  CHECK(lines_of(ops("--region block")) == 2);
  CHECK(lines_of(ops("--slot 2")) == 2);
  CHECK_THAT(ops("--slot 4"), ContainsSubstring("no op is like that\n"));
  CHECK_THAT(run(sample.path("step.rec")).output, ContainsSubstring("mark 'step 1' after "));
}

TEST_CASE("remat-trace writes a trace for viewers", "[tools][remat_trace]") {
  const Sample sample;
  const Result result = run(sample.path("step.rec") + " --chrome " + sample.path("step.json"));
  CHECK(result.exit_code == 0);
  CHECK(result.output.empty());
  std::ifstream file(sample.path("step.json"));
  CHECK(nlohmann::json::parse(file)["traceEvents"].size() == 12);
  const Result fails = run(sample.path("step.rec") + " --chrome /nowhere/step.json");
  CHECK(fails.exit_code == 3);
  CHECK(fails.output ==
        "[remat-trace] /nowhere/step.json: expected a path that can be written. Correct it.\n");
}

TEST_CASE("remat-trace writes snapshots for PyTorch's memory viewer", "[tools][remat_trace]") {
  const Sample sample;
  const Result result = run(sample.path("step.rec") + " --snapshot " + sample.path("a.pickle"));
  CHECK(result.exit_code == 0);
  CHECK(result.output.empty());
  CHECK(std::filesystem::file_size(sample.path("a.pickle")) > 100);
  const Result fails = run(sample.path("step.rec") + " --snapshot /nowhere/a.out");
  CHECK(fails.exit_code == 3);
  CHECK(fails.output ==
        "[remat-trace] /nowhere/a.out: expected a path that can be written. Correct it.\n");
}

TEST_CASE("remat-trace reads what is cut off up to there, and refuses what is none",
          "[tools][remat_trace]") {
  const Sample sample;
  std::filesystem::resize_file(sample.path("step.rec"),
                               std::filesystem::file_size(sample.path("step.rec")) - 1);
  const Result cut = run(sample.path("step.rec"));
  CHECK(cut.exit_code == 0);
  CHECK_THAT(cut.output, ContainsSubstring("expected a block of events, got one that is cut off or "
                                           "changed: what follows is left out\n"));
  CHECK(run("/nowhere/step.rec").exit_code == 3);
  CHECK(run(std::string("'") + REMAT_TRACE_PROGRAM + "'").exit_code == 3);
  CHECK(run("").exit_code == 2);
  CHECK(run(sample.path("step.rec") + " --slot 3").exit_code == 2);
  CHECK(run("--help").exit_code == 0);
}

/// A region whose replay calls `again`, and throws in it if the forward called another op.
remat::Recording replay_of(const std::string& again, uint64_t base) {
  remat::test::RecordedProgram program(base);
  const remat::RecordedTensor x = program.tensor({4}, "float32", true);
  const auto region = [&](const std::string& last) {
    program.op(last, {program.op("aten::sin", {x})}, {program.number(0.5)});
  };
  program.begin_region(1);
  region("aten::leaky_relu");
  program.end_region();
  program.begin_replay(1);
  region(again);
  program.end_replay(again != "aten::leaky_relu");
  return program.recording;
}

TEST_CASE("remat-trace diff tells the first op of a replay that differs, and why",
          "[tools][remat_trace]") {
  const Sample sample;
  remat::test::write(replay_of("aten::leaky_relu", 1000), sample.path("same.rec"));
  const Result same = run("diff " + sample.path("same.rec"));
  CHECK(same.exit_code == 0);
  CHECK(same.output == "no difference: 1 replays by functions, 2 ops that ran again\n");
  remat::test::write(replay_of("aten::elu", 1000), sample.path("other.rec"));
  const Result other = run("diff " + sample.path("other.rec"));
  CHECK(other.exit_code == 4);
  CHECK(other.output ==
        "region 'block', replay 0 of 1: op 1 differs\n"
        "  forward  aten::leaky_relu(float32 [4] on cpu of op 0, 0.5)\n"
        "           at model.py:12 forward\n"
        "  replay   aten::elu(float32 [4] on cpu of op 0, 0.5)\n"
        "           at model.py:112 forward\n"
        "  likely   The function branches on state or on data that has changed.\n"
        "before it, in both:\n"
        "  op 0  aten::sin(float32 [4] on cpu requires grad from outside #0)\n");
}

TEST_CASE("remat-trace diff tells the first op in which two runs differ", "[tools][remat_trace]") {
  const Sample sample;
  const auto written = [&](const std::string& name, const remat::Recording& recording) {
    remat::test::write(recording, sample.path(name));
    return " " + sample.path(name);
  };
  const std::string first = written("a.rec", replay_of("aten::leaky_relu", 1000));
  const Result same = run("diff" + first + written("b.rec", replay_of("aten::elu", 7000)));
  CHECK(same.exit_code == 4);  // differences in their replays
  CHECK_THAT(same.output,
             ContainsSubstring("thread 0, replay, region 'block': op 1 differs\n  first    "));
  remat::Recording plain = replay_of("aten::leaky_relu", 9000);
  plain.replays.clear();
  plain.ops.resize(2);
  const Result equal = run("diff" + first + written("c.rec", plain));
  CHECK(equal.exit_code == 0);
  CHECK(equal.output == "no difference: 2 ops; values of tensors are not recorded\n");
}

TEST_CASE("remat-trace diff refuses what it cannot compare", "[tools][remat_trace]") {
  const Sample sample;
  CHECK(run("diff").exit_code == 2);
  CHECK(run("diff a b c").exit_code == 2);
  CHECK(run("diff /nowhere/step.rec").exit_code == 3);
  CHECK(run("diff " + sample.path("step.rec") + " /nowhere/step.rec").exit_code == 3);
  CHECK(run("--ops diff " + sample.path("step.rec")).exit_code == 2);
  CHECK_THAT(run("diff --help").output, ContainsSubstring("0 no difference; 4 a difference"));
}

}  // namespace
