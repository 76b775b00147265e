// SPDX-License-Identifier: BSD-3-Clause

// Files of profiles and plans, and the errors by which they are refused.
#include <algorithm>
#include <stdexcept>

#include <remat/planner/memory_planner.h>

#include "planner/step/step_models.h"
#include "support/catch.h"

using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::StepProfile;

namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

template <typename Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

std::string profile_error(const std::string& text) {
  return error_of([&] { StepProfile::from_json(text, "p.json"); });
}

remat::StepValue& loss_of(StepProfile& profile) {
  return profile.values[profile.records.back().makes.front()];
}

StepProfile small() {
  StepProfile profile = remat::test::mlp_step(2);
  profile.records[0].kind = 0xfedcba9876543210;
  loss_of(profile).released = 2;
  profile.gap_bytes = 12;
  profile.values.front().unpacked_bytes = 24;
  return profile;
}

MemoryPlan half(const StepProfile& profile) {
  return MemoryPlanner(profile).plan(profile.plain_peak_bytes / 2);
}

TEST_CASE("A step profile comes back from JSON as it was", "[memory_plan]") {
  const std::string text = small().to_json();
  StepProfile read = StepProfile::from_json(text);
  CHECK(read.to_json() == text);
  CHECK(read.digest() == small().digest());
  CHECK(read.records[0].kind == 0xfedcba9876543210);
  CHECK(loss_of(read).released == 2);
  CHECK(read.values.front().released == -1);
  CHECK(read.gap_bytes == 12);
  CHECK(read.values.front().unpacked_bytes == 24);
  CHECK(read.values.back().unpacked_bytes == 0);
}

TEST_CASE("A profile of an accelerator says what does not hold, and so do its plans",
          "[memory_plan]") {
  StepProfile profile = small();
  CHECK(profile.caution().empty());
  CHECK(profile.to_json().find("device") == std::string::npos);
  CHECK(half(profile).table().find("times are of") == std::string::npos);
  profile.device = "cuda:0";
  profile.other_devices = "cuda:1";
  const StepProfile read = StepProfile::from_json(profile.to_json());
  CHECK(read.to_json() == profile.to_json());
  CHECK(read.digest() == small().digest());
  const std::string table = half(read).table();
  CHECK(table.find("times are of the thread that launches, not of cuda:0") != std::string::npos);
  CHECK(table.find("memory of cuda:0 alone, without that of cuda:1") != std::string::npos);
}

TEST_CASE("A digest is of ops, reads and values, not of times", "[memory_plan]") {
  StepProfile profile = small();
  profile.records[1].forward_us *= 2;
  profile.nodes[0].inside_bytes += 1;
  loss_of(profile).released = -1;
  CHECK(profile.digest() == small().digest());
  profile.values[profile.records[1].makes[0]].bytes += 1;
  CHECK(profile.digest() != small().digest());
}

TEST_CASE("A damaged step profile is refused by line and place", "[memory_plan]") {
  const std::string text = small().to_json();
  CHECK(profile_error("{") != "no error");
  CHECK(profile_error(replaced(text, "\"end_bytes\"", "\"bytes\"")) ==
        "[memory plan] p.json:1: the whole text: expected a member \"end_bytes\", got none. Write "
        "the file again.");
  CHECK(profile_error(replaced(text, "\"op\":\"aten::addmm\"", "\"op\":7")) ==
        "[memory plan] p.json:25: records[0].op: expected a string, got 7. Write the file again.");
  CHECK(profile_error(replaced(text, "\"reads\":[1,0]", "\"reads\":[9,0]")) ==
        "[memory plan] p.json:25: records[0].reads[0]: expected a value that was made before, got "
        "9. Measure the step again.");
  CHECK(profile_error(replaced(text, "\"kind\":\"fedc", "\"kind\":\"FEDC")) ==
        "[memory plan] p.json:25: records[0].kind: expected 16 hex digits, got "
        "\"FEDCba9876543210\". Write the file again.");
}

TEST_CASE("A step profile is refused that no program has", "[memory_plan]") {
  const auto fault = [](auto change) {
    StepProfile profile = small();
    change(profile);
    return error_of([&] { profile.validate("p"); });
  };
  CHECK(fault([](StepProfile& p) { p.records.clear(); }) ==
        "[memory plan] p: records: expected 1 record or more, got none. Run a forward that "
        "computes.");
  CHECK_THAT(fault([](StepProfile& p) { p.records[0].forward_us = -1; }),
             ContainsSubstring("records[0].forward_us: expected 0 to 1e9 us"));
  CHECK_THAT(fault([](StepProfile& p) { p.values[2].held_until = -1; }),
             ContainsSubstring("values[2].held_until: expected 0 to"));
  CHECK_THAT(fault([](StepProfile& p) { p.values.back().held_until = 1; }),
             ContainsSubstring("held_until: expected one number for all values of a storage"));
  CHECK_THAT(fault([](StepProfile& p) { loss_of(p).released = -2; }),
             ContainsSubstring("].released: expected -1 to 9, got -2"));
  CHECK_THAT(fault([](StepProfile& p) { loss_of(p).released = 10; }),
             ContainsSubstring("].released: expected -1 to 9, got 10"));
  CHECK_THAT(fault([](StepProfile& p) { p.values[p.records[1].makes[0]].released = 0; }),
             ContainsSubstring("].released: expected one number for all values of a storage, -1 of "
                               "one that the program does not hold"));
  CHECK_THAT(fault([](StepProfile& p) { p.values[0].released = 0; }),
             ContainsSubstring("values[0].released: expected one number"));
  CHECK_THAT(fault([](StepProfile& p) { p.values[0].unpacked_bytes = -1; }),
             ContainsSubstring("values[0].unpacked_bytes: expected 0 to 2^50 bytes, got -1"));
  CHECK_THAT(fault([](StepProfile& p) { loss_of(p).unpacked_bytes = 4; }),
             ContainsSubstring(
                 "].unpacked_bytes: expected 0 of a value that a record makes, got 4. Measure"));
  CHECK_THAT(fault([](StepProfile& p) {
               const remat::StepValue large{
                   .maker = -1, .storage = 0, .unpacked_bytes = int64_t{1} << 50};
               p.values.resize(p.values.size() + 10, large);
             }),
             ContainsSubstring("values: expected 1e16 bytes or less in all"));
  CHECK_THAT(fault([](StepProfile& p) { p.end_bytes = 3; }),
             ContainsSubstring("end_bytes: expected the 4 bytes released, or more, got 3"));
  CHECK_THAT(fault([](StepProfile& p) { p.gap_bytes = -1; }),
             ContainsSubstring("gap_bytes: expected 0 to 2^50 bytes, got -1"));
  CHECK_THAT(fault([](StepProfile& p) { p.records[1].makes.push_back(2); }),
             ContainsSubstring("records[1].makes[1]: expected a value whose maker this record is"));
  CHECK_THAT(fault([](StepProfile& p) { p.records[1].makes.clear(); }),
             ContainsSubstring("expected a"));
  CHECK_THAT(fault([](StepProfile& p) { p.slots[0].node = 99; }),
             ContainsSubstring("slots[0].node: expected -2 to 8, got 99"));
  CHECK_THAT(fault([](StepProfile& p) { p.slots.back().record = 0; }),
             ContainsSubstring("record: expected a record not before"));
  CHECK_THAT(fault([](StepProfile& p) { p.nodes[3].before_bytes = -4; }),
             ContainsSubstring("nodes[3].before_bytes: expected 0 to 2^50 bytes, got -4"));
}

TEST_CASE("The values of a storage are let go together", "[memory_plan]") {
  StepProfile profile = remat::test::resnet_step(1);
  const auto wrote = std::find_if(profile.records.begin(), profile.records.end(),
                                  [](const remat::StepRecord& r) { return !r.writes.empty(); });
  REQUIRE(wrote != profile.records.end());
  for (const int32_t v : {wrote->writes[0].before, wrote->writes[0].after}) {
    profile.values[v].held_until = static_cast<int32_t>(profile.records.size());
    profile.values[v].released = 1;
  }
  profile.end_bytes += profile.values[wrote->writes[0].after].bytes;
  CHECK_NOTHROW(profile.validate());
  profile.values[wrote->writes[0].after].released = 2;
  CHECK_THAT(error_of([&] { profile.validate(); }),
             ContainsSubstring("].released: expected one number for all values of a storage"));
}

TEST_CASE("A memory plan comes back from JSON as it was", "[memory_plan]") {
  const StepProfile profile = remat::test::unet_step(2);
  const MemoryPlan plan = half(profile);
  const MemoryPlan read = MemoryPlan::from_json(plan.to_json(), profile);
  CHECK(read.to_json() == plan.to_json());
  CHECK(read.cuts.keep == plan.cuts.keep);
  CHECK(read.phases == plan.phases);
}

TEST_CASE("A plan for another step is refused by the first op that differs", "[memory_plan]") {
  const StepProfile profile = small();
  const std::string text = half(profile).to_json();
  const auto error = [&](const StepProfile& other) {
    return error_of([&] { MemoryPlan::from_json(text, other, "plan.json"); });
  };
  StepProfile renamed = profile;
  renamed.records[4].op = "aten::relu";
  CHECK_THAT(error(renamed),
             ContainsSubstring("ops[4]: expected aten::relu (layers.1), as the step has, got "
                               "aten::gelu (layers.1). Plan for this step."));
  StepProfile larger = profile;
  larger.values[profile.records[1].makes[0]].bytes += 4;
  CHECK_THAT(error(larger), ContainsSubstring("ops[1]: expected aten::gelu (layers.0), as the step "
                                              "has, got aten::gelu (layers.0) with other reads, "
                                              "results or sizes."));
  CHECK_THAT(error(remat::test::mlp_step(3)), ContainsSubstring("ops[6]: expected aten::addmm "
                                                                "(layers.2), as the step has, got "
                                                                "aten::addmm (head) with other"));
}

TEST_CASE("A damaged memory plan is refused by line and place", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(4);
  const MemoryPlan plan = half(profile);
  REQUIRE(plan.cuts.positions.size() > 1);
  const auto error = [&](MemoryPlan damaged) {
    return error_of([&] { MemoryPlan::from_json(damaged.to_json(), profile, "m.json"); });
  };
  MemoryPlan damaged = plan;
  damaged.cuts.positions[1] = 0;
  CHECK_THAT(error(damaged), ContainsSubstring("positions[1]: expected a record after"));
  damaged = plan;
  damaged.cuts.keep.clear();
  CHECK_THAT(error(damaged), ContainsSubstring("keep: expected all that crosses a cut, got less"));
  damaged = plan;
  damaged.feasible = false;
  CHECK_THAT(error(damaged), ContainsSubstring("feasible: expected whether the predicted peak"));
  damaged = plan;
  damaged.ops.pop_back();
  CHECK_THAT(error(damaged), ContainsSubstring("ops: expected the step's"));
  const std::string text = plan.to_json();
  CHECK_THAT(error_of([&] {
               MemoryPlan::from_json(replaced(text, "\"overhead\": ", "\"overhead\": -"), profile);
             }),
             ContainsSubstring("overhead: expected 0 or more"));
  for (size_t length = 0; length + 2 < text.size(); length += 97)
    CHECK(error_of([&] { MemoryPlan::from_json(text.substr(0, length), profile); }) != "no error");
}

}  // namespace
