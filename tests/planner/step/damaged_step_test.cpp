// SPDX-License-Identifier: BSD-3-Clause

// A damaged step profile or memory plan is refused with line and place, or it is a valid one with
// other contents.
#include <string>
#include <vector>

#include <remat/planner/memory_planner.h>

#include "damage/read_mutants.h"
#include "planner/step/random_step.h"
#include "support/catch.h"

using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::StepProfile;
using remat::test::Tally;

namespace {

/// True for "[memory plan] mutant.json:12: place: expected ..., got .... What to do."
bool names_the_line(const std::string& text) {
  const std::string head = "[memory plan] mutant.json:";
  if (text.rfind(head, 0) != 0 || text.find("expected ") == std::string::npos ||
      text.find(", got ") == std::string::npos)
    return false;
  const size_t colon = text.find_first_not_of("0123456789", head.size());
  return colon != std::string::npos && colon > head.size() && text[colon] == ':';
}

std::vector<StepProfile> some_steps() {
  std::vector<StepProfile> steps;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    steps.push_back(remat::test::random_step(random));
  }
  return steps;
}

std::string fault_of(const StepProfile& profile) {
  if (StepProfile::from_json(profile.to_json()).to_json() != profile.to_json())
    return "written and read back it is another profile";
  remat::MemoryPlannerOptions options;
  options.evaluations = 100;
  const MemoryPlanner planner(profile, options);
  const int64_t least = planner.frontier().front().peak_bytes;
  const MemoryPlan plan = planner.plan(least);
  if (!plan.feasible || plan.predicted_peak_bytes != least) return "a plan does not fit";
  if (plan.lower_bound > plan.predicted_overhead) return "a bound above a plan";
  return least > 0 && planner.plan(least - 1).feasible ? "a plan below the least budget" : "";
}

TEST_CASE("A damaged step profile is refused with its line, or is a profile",
          "[memory_plan][fuzz]") {
  std::vector<std::string> texts;
  for (const StepProfile& step : some_steps()) texts.push_back(step.to_json());
  const auto fault = [&](size_t which, const std::string& text, Tally& tally) -> std::string {
    const StepProfile profile = StepProfile::from_json(text, "mutant.json");
    ++tally.accepted;
    if (profile.to_json() == texts[which]) return "";
    ++tally.changed;
    return fault_of(profile);
  };
  const Tally tally = remat::test::read_mutants(texts, names_the_line, fault);
  WARN(tally.read << " files, " << tally.refused << " refused, " << tally.accepted
                  << " accepted, of which " << tally.changed << " are other profiles");
  CHECK(tally.refused > tally.read / 4);
  CHECK(tally.changed > remat::test::mutants_per_damage() / 50);
}

TEST_CASE("A damaged memory plan is refused with its line, or is a plan that can run",
          "[memory_plan][fuzz]") {
  const std::vector<StepProfile> steps = some_steps();
  std::vector<std::string> texts;
  for (const StepProfile& step : steps) {
    const MemoryPlanner planner(step);
    const size_t middle = planner.frontier().size() / 2;
    texts.push_back(planner.plan(planner.frontier()[middle].peak_bytes).to_json());
  }
  const auto fault = [&](size_t which, const std::string& text, Tally& tally) -> std::string {
    const MemoryPlan plan = MemoryPlan::from_json(text, steps[which], "mutant.json");
    ++tally.accepted;
    remat::simulate_step(steps[which], plan.cuts);
    const std::string written = plan.to_json();
    tally.changed += written != texts[which];
    if (MemoryPlan::from_json(written, steps[which]).to_json() != written)
      return "it changes when it is read back";
    return "";
  };
  const Tally tally = remat::test::read_mutants(texts, names_the_line, fault);
  WARN(tally.read << " files, " << tally.refused << " refused, " << tally.accepted
                  << " accepted, of which " << tally.changed << " say something else");
  CHECK(tally.refused > tally.read / 4);
}

}  // namespace
