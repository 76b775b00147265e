// SPDX-License-Identifier: BSD-3-Clause

// remat-plan as people and scripts call it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "policy/test_data.h"
#include "support/catch.h"

namespace {

struct Result {
  int exit_code = -1;
  std::string output;  ///< Of both streams
};

Result run(const std::string& arguments, const std::string& redirect = "2>&1") {
  Result result;
  const std::string command =
      std::string("'") + REMAT_PLAN_PROGRAM + "' " + arguments + " " + redirect;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

std::string data(const std::string& name) {
  return "'" + (remat::test::planner_data() / name).string() + "'";
}

/// A folder that goes with the test.
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

const char* const gpt2_large = "model --gpt2-large --batch 2 --seq 512 --gpu v100 ";

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

TEST_CASE("An infeasible budget exits with 4 and says what stands in the way",
          "[tools][remat_plan]") {
  const Result json = run(data("small_19.json") + " --budget 77B --json", "2>/dev/null");
  CHECK(json.exit_code == 4);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  CHECK(plan["feasible"] == false);
  CHECK(plan["total_time"].is_null());
  CHECK(plan["least_budget"] == 78);
  CHECK_FALSE(plan["held"].empty());
  const Result text = run(std::string(gpt2_large) + "--budget 300MB");
  CHECK(text.exit_code == 4);
  CHECK_THAT(
      text.output,
      ContainsSubstring(
          "the least that fits is 402.65 MiB (422207492 B), held in region 73 'head', forward"));
  CHECK_THAT(text.output, ContainsSubstring("tensor 'lg' of region 73 'head'"));
}

TEST_CASE("The model command plans a GPU that one does not have", "[tools][remat_plan]") {
  const Result all = run(gpt2_large);
  CHECK(all.exit_code == 0);
  CHECK_THAT(all.output, ContainsSubstring("12.2 %") && ContainsSubstring("20.64 %") &&
                             ContainsSubstring("20.37 %"));
  CHECK_THAT(all.output,
             ContainsSubstring("each layer checkpointed: 583.90 MiB (8.83 %), overhead 31.76 %"));
  const Result frontier = run(std::string(gpt2_large) + "--json", "2>/dev/null");
  CHECK(nlohmann::json::parse(frontier.output)["frontier"].size() > 1000);
  const Result plan = run(std::string(gpt2_large) + "--budget 25% --explain 1/attn.qkv");
  CHECK(plan.exit_code == 0);
  CHECK_THAT(plan.output,
             ContainsSubstring("10.34 % above") && ContainsSubstring("attn/attn.qkv: "));
}

TEST_CASE("A plan that was written can be replayed, and a changed one is refused",
          "[tools][remat_plan]") {
  const Folder folder;
  CHECK(run(std::string(gpt2_large) + "--budget 1GiB --plan " + folder.file("plan.json") +
            " --profile-out " + folder.file("profile.json"))
            .exit_code == 0);
  const Result replay = run(folder.file("profile.json") + " --replay " + folder.file("plan.json"));
  CHECK(replay.exit_code == 0);
  CHECK_THAT(replay.output, ContainsSubstring("no schedule without OFFLOAD is below"));
  std::string text = folder.text("plan.json");
  text.replace(text.find("RECOMPUTE"), 9, "SAVE");
  std::ofstream(folder.path / "plan.json") << text;
  const Result changed = run(folder.file("profile.json") + " --replay " + folder.file("plan.json"));
  CHECK(changed.exit_code == 3);
  CHECK_THAT(changed.output,
             ContainsSubstring("[plan] ") && ContainsSubstring("what a replay comes to"));
}

TEST_CASE("The Pareto curve comes as numbers and as a picture", "[tools][remat_plan]") {
  const Folder folder;
  CHECK(run(data("medium_08.json") + " --pareto " + folder.file("curve.csv")).exit_code == 0);
  const std::string csv = folder.text("curve.csv");
  CHECK_THAT(
      csv,
      ContainsSubstring(
          "budget_bytes,total_time_us,overhead\n140,2739.000000,1.415343915\n148,1913.000000"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 75);  // A line for each of the 74 breakpoints
  CHECK(run(data("medium_08.json") + " --pareto " + folder.file("curve.svg")).exit_code == 0);
  const std::string svg = folder.text("curve.svg");
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK_THAT(svg, ContainsSubstring("Rotor's plans") && ContainsSubstring("</svg>"));
}

TEST_CASE("Errors go to the exit code that --help documents", "[tools][remat_plan][errors]") {
  const Folder folder;
  const Result help = run("--help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.output, ContainsSubstring("Examples:") &&
                              ContainsSubstring("Exit codes: 0 done") &&
                              ContainsSubstring("--pareto"));
  CHECK(run("").exit_code == 2);
  CHECK(run("--bogus").exit_code == 2);
  CHECK(run("model --gpt2-large --gpt2-xl").exit_code == 2);
  CHECK(run("model --layers 3").exit_code == 2);
  CHECK(run(data("small_19.json") + " --explain b0.mm1").exit_code == 2);
  CHECK(run(data("small_19.json") + " --budget lots").exit_code == 2);
  CHECK(run(data("small_19.json") + " --budget 90B --explain nothing").exit_code == 2);
  CHECK(run(data("small_19.json") + " --pareto curve.png").exit_code == 2);
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
