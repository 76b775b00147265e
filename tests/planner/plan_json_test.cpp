// SPDX-License-Identifier: BSD-3-Clause

// Plans as JSON: a plan whose numbers are not true is refused.
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <remat/planner/planner.h>

#include "planner/test_data.h"
#include "support/catch.h"

using nlohmann::ordered_json;
using remat::Plan;
using remat::Planner;
using remat::Profile;

namespace {

struct Fixture {
  Fixture()
      : planner(Profile::from_json(
            remat::test::read_file(remat::test::planner_data() / "small_19.json"))),
        plan(ordered_json::parse(planner.plan(90).to_json())) {}

  std::string error_of(const std::string& text) const {
    try {
      Plan::from_json(text, planner.profile(), "plan.json");
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  }

  std::string error_with(const char* pointer, const ordered_json& value) const {
    ordered_json changed = plan;
    changed[ordered_json::json_pointer(pointer)] = value;
    return error_of(changed.dump(1));
  }

  Planner planner;
  ordered_json plan;
};

}  // namespace

TEST_CASE("A plan survives being written and read", "[policy][plan]") {
  const Fixture fixture;
  const Plan plan = Plan::from_json(fixture.plan.dump(), fixture.planner.profile());
  CHECK(plan.to_json() == fixture.planner.plan(90).to_json());
  CHECK(plan.feasible);
  CHECK(plan.total_time_us == 75);  // the instance's answer for 90 bytes
}

TEST_CASE("What a plan says of itself must come out of a replay", "[policy][plan][errors]") {
  const Fixture fixture;
  CHECK_THAT(fixture.error_with("/total_time", 74.0),
             ContainsSubstring(
                 "[plan] plan.json:4: total_time: expected 75.0, what a replay comes to, got 74"));
  CHECK_THAT(fixture.error_with("/simulated_peak", 80),
             ContainsSubstring("simulated_peak: expected"));
  CHECK_THAT(fixture.error_with("/overhead", 0.5), ContainsSubstring("overhead: expected 0.25"));
  CHECK_THAT(fixture.error_with("/gap", 5), ContainsSubstring("gap: expected"));
  CHECK_THAT(fixture.error_with("/lower_bound", 0.3),
             ContainsSubstring("lower_bound: expected 0 to the overhead"));
  CHECK_THAT(fixture.error_with("/budget", 70),
             ContainsSubstring("budget: expected at least the peak"));
  CHECK_THAT(fixture.error_with("/feasible", false),
             ContainsSubstring("total_time: expected null in a plan that is not feasible"));
  CHECK_THAT(fixture.error_with("/profile", "0000000000000000"),
             ContainsSubstring("the digest of the profile"));
}

TEST_CASE("A table that does not fit the profile is refused with its place",
          "[policy][plan][errors]") {
  const Fixture fixture;
  CHECK_THAT(fixture.error_with("/table/1/region", "b7"),
             ContainsSubstring("table[1]: expected region 1 'b0', part 0, got region 1 'b7'"));
  CHECK_THAT(
      fixture.error_with("/table/1/ops/b0.mm1", "KEEP"),
      ContainsSubstring("table[1].ops.b0.mm1: expected \"SAVE\" or \"RECOMPUTE\", got \"KEEP\""));
  CHECK_THAT(fixture.error_with("/table/0/run", {0, 2}),
             ContainsSubstring("table[0]: expected regions that the profile lets run as one"));
  CHECK_THAT(fixture.error_with("/groups", {{0, 3}}),
             ContainsSubstring("groups[0]: expected 0 <= first < next < 3, got [0, 3]"));
  CHECK_THAT(fixture.error_with("/groups", {{0, 1}, {0, 1}}),
             ContainsSubstring("groups: expected groups that nest"));
  ordered_json without = fixture.plan;
  without["table"].erase(2);
  CHECK_THAT(fixture.error_of(without.dump()),
             ContainsSubstring("table: expected 3 rows, one per region, got 2"));
}
