// SPDX-License-Identifier: BSD-3-Clause

// remat-plan as people and scripts call it.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/chain/test_data.h"
#include "support/catch.h"
#include "tools/run_command.h"

using remat::test::Result;
using remat::test::run_command;

namespace {

Result run(const std::string& arguments, const std::string& redirect = "2>&1") {
  return run_command(std::string("'") + REMAT_PLAN_PROGRAM + "' " + arguments + " " + redirect);
}

std::string data(const std::string& name) {
  return "'" + (remat::test::planner_data() / name).string() + "'";
}

/// A temporary folder for a test.
struct Folder {
  Folder()
      : path(std::filesystem::temp_directory_path() /
             ("remat_plan_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return "'" + (path / name).string() + "'"; }
  std::string text(const std::string& name) const { return remat::test::read_file(path / name); }

  std::filesystem::path path;
};

std::string gpt2_large() {
  return data("large_gpt2l_2x512_v100.json") + " ";
}

}  // namespace

TEST_CASE("--json prints one object in bytes and microseconds", "[tools][remat_plan]") {
  const Result result = run(data("small_19.json") + " --budget 90B --json", "2>/dev/null");
  CHECK(result.exit_code == 0);
  const nlohmann::json plan = nlohmann::json::parse(result.output);
  CHECK(plan["feasible"] == true);
  CHECK(plan["budget"] == 90);
  CHECK(plan["total_time"] == 75);
  CHECK(plan["overhead"] == 0.25);
  CHECK(plan["predicted_peak"] == plan["simulated_peak"]);
  CHECK(plan["simulated_peak"] <= 90);
  CHECK(plan["gap"].get<double>() ==
        plan["overhead"].get<double>() - plan["lower_bound"].get<double>());
  CHECK(plan["table"].size() == 3);
  CHECK(plan["table"][0]["ops"].size() == 4);
  CHECK(plan["groups"].is_array());
}

TEST_CASE("The profile in the manual is planned", "[tools][remat_plan]") {
  const std::string page = remat::test::read_file(REMAT_PLAN_PAGE);
  const std::string fence = "```json\n";
  REQUIRE(page.find(fence) != std::string::npos);
  const size_t begin = page.find(fence) + fence.size();
  const std::string profile = page.substr(begin, page.find("```", begin) - begin);
  const Folder folder;
  std::ofstream(folder.path / "profile.json") << profile;
  const Result result = run(folder.file("profile.json") + " --budget 70%");
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.output, ContainsSubstring("row 0  mlp: RECOMPUTE up gelu"));
}

TEST_CASE("An infeasible budget exits with 4 and says what stands in the way",
          "[tools][remat_plan]") {
  const Result json = run(data("small_19.json") + " --budget 77B --json", "2>/dev/null");
  CHECK(json.exit_code == 4);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  CHECK(plan["feasible"] == false);
  CHECK(plan["total_time"].is_null());
  CHECK(plan["least_budget"] == 78);
  CHECK(plan["least_at"].is_string());
  const Result text = run(gpt2_large() + "--budget 300MB");
  CHECK(text.exit_code == 4);
  CHECK_THAT(
      text.output,
      ContainsSubstring(
          "the least that fits is 422.21 MB (422207492 B), held in region 73 'head', forward"));
}

TEST_CASE("Without a budget all budgets of a chain are shown", "[tools][remat_plan]") {
  const Result all = run(gpt2_large());
  CHECK(all.exit_code == 0);
  CHECK_THAT(all.output, ContainsSubstring("12.2 %") && ContainsSubstring("20.64 %") &&
                             ContainsSubstring("20.37 %"));
  CHECK_THAT(all.output,
             ContainsSubstring("each layer checkpointed: 612.26 MB (8.83 %), overhead 31.76 %"));
  const Result frontier = run(gpt2_large() + "--json", "2>/dev/null");
  CHECK(nlohmann::json::parse(frontier.output)["frontier"].size() > 1000);
  const Result plan = run(gpt2_large() + "--budget 25%");
  CHECK(plan.exit_code == 0);
  CHECK_THAT(plan.output, ContainsSubstring("10.34 % above"));
}

TEST_CASE("Errors go to the exit code that --help documents", "[tools][remat_plan][errors]") {
  const Folder folder;
  const Result help = run("--help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.output, ContainsSubstring("Examples:") &&
                              ContainsSubstring("Exit codes: 0 done") &&
                              ContainsSubstring("--explain"));
  CHECK(run("").exit_code == 2);
  CHECK(run("--bogus").exit_code == 2);
  CHECK(run("model --gpt2-large").exit_code == 2);
  CHECK(run(data("small_19.json") + " --explain b0.mm1").exit_code == 2);
  CHECK(run(data("small_19.json") + " --budget lots").exit_code == 2);
  const Result chain = run(data("small_19.json") + " --budget 90B --explain b0.mm1");
  CHECK(chain.exit_code == 2);
  CHECK_THAT(chain.output, ContainsSubstring("--explain: expected the profile of a measured step"));
  const Result absent = run("/nonexistent/profile.json");
  CHECK(absent.exit_code == 3);
  CHECK_THAT(absent.output,
             ContainsSubstring(
                 "[remat-plan] /nonexistent/profile.json: expected a file that can be read"));
  CHECK(run(data("small_19.json") + " --budget 90B --plan /nonexistent/plan.json").exit_code == 3);
  std::ofstream(folder.path / "broken.json") << "{\"time_unit\": \"us\",\n \"byte_unit\": 7}";
  const Result broken = run(folder.file("broken.json"));
  CHECK(broken.exit_code == 3);
  CHECK_THAT(broken.output,
             ContainsSubstring("[profile] ") &&
                 ContainsSubstring("broken.json:1: the whole text: expected a member"));
}

TEST_CASE("Arguments that would not be looked at are refused", "[tools][remat_plan][faults]") {
  const Folder folder;
  CHECK(run(data("small_19.json") + " --budget 90B --plan " + folder.file("plan.json")).exit_code ==
        0);
  const std::string replay = data("small_19.json") + " --replay " + folder.file("plan.json");
  CHECK(run(replay).exit_code == 2);
  CHECK(run(replay + " --budget 90B").exit_code == 2);
  CHECK(run(data("small_19.json") + " --budget 7B").exit_code == 4);
  for (const char* option : {"--explain", "--budget", "--plan", "--replay"}) {
    CAPTURE(option);
    CHECK(run(data("small_19.json") + " --budget 90B " + option + " ''").exit_code == 2);
  }
}

TEST_CASE("Output that is not taken is no success", "[tools][remat_plan][faults]") {
  for (const char* arguments : {"", " --json --budget 1", " --budget 1", " --json"}) {
    CAPTURE(arguments);
    const Result full = run(data("small_19.json") + arguments, "2>&1 >/dev/full");
    CHECK(full.exit_code == 3);
    CHECK_THAT(full.output, ContainsSubstring("[remat-plan] standard output: expected"));
    CHECK(run(data("small_19.json") + arguments, ">&-").exit_code == 3);
  }
  CHECK(run("--help", "2>&1 >/dev/full").exit_code == 3);
}

TEST_CASE("Each run has a line", "[tools][remat_plan]") {
  const Result whole = run(gpt2_large() + "--budget 100%");
  CHECK_THAT(whole.output, ContainsSubstring("row 1  attn: nothing runs again\n"));
  CHECK_THAT(whole.output, ContainsSubstring("row 73  head: nothing runs again\n"));
}

TEST_CASE("A profile without bytes has shares", "[tools][remat_plan][faults]") {
  const Folder folder;
  std::ofstream(folder.path / "zero.json") << R"({"time_unit": "us", "byte_unit": "B", "chain": [0],
    "block_types": [{"name": "A", "input_bytes": 0, "output": "y", "ops": [{"name": "a", "fwd": 1,
    "bwd": 1, "ins": ["in"], "outs": [["y", 0]], "bwd_needs": []}]}]})";
  const Result result = run(folder.file("zero.json"));
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.output, !ContainsSubstring("nan"));
}

TEST_CASE("What terminals obey in a file does not come to the terminal",
          "[tools][remat_plan][faults]") {
  const Folder folder;
  std::ofstream(folder.path / "colour.json") << R"({"time_unit": "\u001b[31mred", "byte_unit": "B",
    "block_types": [], "chain": []})";
  const Result result = run(folder.file("colour.json"));
  CHECK(result.exit_code == 3);
  CHECK(result.output.find('\x1b') == std::string::npos);
}

TEST_CASE("The profile of a measured step is planned", "[tools][remat_plan]") {
  const Folder folder;
  const std::string step = data("../steps/gpt2_6.json");
  const Result all = run(step);
  CHECK(all.exit_code == 0);
  CHECK_THAT(all.output, ContainsSubstring("280 ops; peak without checkpointing 9.16 MB"));
  CHECK_THAT(all.output, ContainsSubstring("  50.0 %"));
  const Result half = run(step + " --budget 50% --plan " + folder.file("plan.json"));
  CHECK(half.exit_code == 0);
  CHECK_THAT(half.output, ContainsSubstring("budget 4.58 MB, peak"));
  const Result replay = run(step + " --replay " + folder.file("plan.json"));
  CHECK(replay.exit_code == 0);
  CHECK(replay.output == half.output);
  CHECK(run(step + " --replay " + folder.file("plan.json") + " --budget 50%").exit_code == 2);
  auto changed = nlohmann::ordered_json::parse(folder.text("plan.json"));
  changed["plan"]["positions"][0] = 0;
  std::ofstream(folder.path / "plan.json") << changed.dump(1);
  CHECK(run(step + " --replay " + folder.file("plan.json")).exit_code == 3);
  CHECK(run(step + " --budget 1KiB").exit_code == 4);
  const Result place = run(step + " --budget 50% --explain transformer.h.3.mlp");
  CHECK_THAT(place.output, ContainsSubstring("transformer.h.3.mlp.c_fc: keeps"));
}

TEST_CASE("Damaged profiles of steps and budgets that are none are refused",
          "[tools][remat_plan][faults]") {
  const Folder folder;
  const std::string step = data("../steps/gpt2_6.json");
  auto profile = nlohmann::ordered_json::parse(
      remat::test::read_file(remat::test::planner_data() / "../steps/gpt2_6.json"));
  profile["values"][0][0] = 1000;
  std::ofstream(folder.path / "damaged.json") << profile.dump(1);
  const Result damaged = run(folder.file("damaged.json"));
  CHECK(damaged.exit_code == 3);
  CHECK_THAT(damaged.output, ContainsSubstring("damaged.json"));
  CHECK(run(step + " --budget much").exit_code == 2);
}
