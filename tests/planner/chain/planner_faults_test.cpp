// SPDX-License-Identifier: BSD-3-Clause

// Regression tests, each named after its former fault.
#include <stdexcept>

#include <remat/planner/planner.h>

#include "planner/chain/fault_of.h"
#include "planner/chain/test_data.h"
#include "support/catch.h"

using remat::BlockType;
using remat::Plan;
using remat::Planner;
using remat::Profile;
using remat::ProfileOp;

namespace {

ProfileOp op_of(const std::string& name, const std::vector<std::string>& ins,
                const std::vector<remat::ProfileTensor>& outs) {
  ProfileOp made;
  made.name = name;
  made.fwd_us = 5;
  made.bwd_us = 5;
  made.ins = ins;
  made.outs = outs;
  made.bwd_needs = ins;
  return made;
}

/// Regions A and B, each in -> h -> y, whose h have 64 and 640 bytes, and both merged as region M.
Profile two_regions() {
  Profile profile;
  profile.block_types = {
      {"A", 8, true, "y", {op_of("a", {"in"}, {{"h", 64}}), op_of("b", {"h"}, {{"y", 8}})}},
      {"B", 8, true, "y", {op_of("c", {"in"}, {{"h", 640}}), op_of("d", {"h"}, {{"y", 8}})}},
      {"M",
       8,
       true,
       "y",
       {op_of("a", {"in"}, {{"h", 64}}), op_of("b", {"h"}, {{"y1", 8}}),
        op_of("c", {"y1"}, {{"g", 640}}), op_of("d", {"g"}, {{"y", 8}})}}};
  profile.chain = {0, 1};
  profile.merge_patterns = {{{0, 1}, 2}};
  return profile;
}

/// A region of `ops` ops, each of which reads the result of the one before it.
Profile line_profile(int ops) {
  Profile profile;
  BlockType type{"line", 8, true, "", {}};
  for (int i = 0; i < ops; ++i) {
    const std::string in = i == 0 ? "in" : "t" + std::to_string(i - 1);
    type.ops.push_back(op_of("op" + std::to_string(i), {in}, {{"t" + std::to_string(i), 8}}));
  }
  type.output = type.ops.back().outs[0].name;
  profile.block_types = {type};
  profile.chain = {0, 0};
  return profile;
}

}  // namespace

TEST_CASE("A merged type that differs from its pattern in bytes or in what is read is refused",
          "[policy][profile][faults]") {
  const auto merged_fault = [](auto change) {
    return remat::test::fault_of(two_regions(), [&](Profile& p) { change(p.block_types[2]); });
  };
  CHECK(merged_fault([](BlockType&) {}) == "no error");
  const std::string numbers = "expected the pattern's times, bytes, ins, outs and bwd_needs, got";
  CHECK_THAT(merged_fault([](BlockType& m) { m.ops[0].outs[0].bytes = 1; }),
             ContainsSubstring(
                 "[profile] changed: merge_patterns[0].block_type (type 'M', op 'a'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) { m.ops[2].fwd_tmp_bytes = 1; }),
             ContainsSubstring("op 'c'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) { m.ops[2].bwd_tmp_bytes = 1; }),
             ContainsSubstring("op 'c'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) { m.ops[2].ins = {"in"}; }),
             ContainsSubstring("op 'c'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) { m.ops[1].bwd_needs.clear(); }),
             ContainsSubstring("op 'b'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) {
               m.ops[3].outs.push_back({"more", 0});
             }),
             ContainsSubstring("op 'd'): " + numbers));
  CHECK_THAT(merged_fault([](BlockType& m) {
               m.ops.push_back(op_of("e", {"y"}, {{"z", 8}}));
             }),
             ContainsSubstring("(type 'M'): expected 4 ops, those of the pattern, got 5"));
  CHECK_THAT(merged_fault([](BlockType& m) { m.output = "y1"; }),
             ContainsSubstring("(type 'M'): expected the output of the pattern's last region, got "
                               "'y1'"));
}

TEST_CASE("A second merge pattern over the same regions is refused", "[policy][profile][faults]") {
  const std::string fault = remat::test::fault_of(two_regions(), [](Profile& p) {
    p.block_types.push_back(p.block_types[2]);
    p.block_types[3].name = "N";
    p.merge_patterns.push_back({{0, 1}, 3});
  });
  CHECK_THAT(fault, ContainsSubstring("[profile] changed: merge_patterns[1].pattern: expected a "
                                      "pattern that no other merge_pattern has"));
}

TEST_CASE("A region that no gradient passes is refused", "[policy][profile][faults]") {
  const std::string fault = remat::test::fault_of(two_regions(), [](Profile& p) {
    p.merge_patterns.clear();
    p.block_types[1].ops[1].ins.clear();  // c reads "in", but no path leads to the output
  });
  CHECK_THAT(fault, ContainsSubstring("[profile] changed: chain[1] (region 1 'B'): expected ops "
                                      "that lead from \"in\" to the output"));
}

TEST_CASE("The lower bound leaves out ops that no gradient reaches",
          "[policy][planner][bound][faults]") {
  // No op reads s, so side's backward may run at once, and m's 100 bytes are freed before the 100
  // bytes of workspace are needed. Peaks: A's forward with m 132, side's backward 132, last's
  // backward 8 + 8 + 8 (x_0, t, x_1) + 8 (gradient of t) + 8 + 8 (gradients) + 100 = 148.
  Profile profile;
  ProfileOp side = op_of("side", {"t"}, {{"s", 0}});
  side.bwd_needs = {"m"};
  ProfileOp last = op_of("last", {"in"}, {{"y", 8}});
  last.bwd_tmp_bytes = 100;
  profile.block_types = {
      {"A",
       8,
       true,
       "y",
       {op_of("a", {"in"}, {{"t", 8}, {"m", 100}}), side, op_of("b", {"t"}, {{"y", 8}})}},
      {"B", 8, true, "y", {last}}};
  profile.chain = {0, 1};
  CHECK(Planner(profile).lower_bound(150) == 0);
}

TEST_CASE("A plan says the bound that the planner has, not one made to fit",
          "[policy][planner][bound][faults]") {
  const Planner planner(
      Profile::from_json(remat::test::read_file(remat::test::planner_data() / "medium_08.json")));
  for (const remat::FrontierPoint& point : planner.frontier().points()) {
    const Plan plan = planner.plan(point.budget_bytes);
    CHECK(plan.lower_bound == planner.lower_bound(point.budget_bytes));
  }
}

TEST_CASE("A peak in a merged run is named by its own row", "[policy][planner][faults]") {
  const Plan plan = Planner(two_regions()).layer_checkpoint();
  REQUIRE(plan.table[0].run_count == 2);
  CHECK(plan.peak_region == "region 1 'B', backward");
}

TEST_CASE("A line of any number of ops is cut, although it cannot run as one region",
          "[policy][planner][split][faults]") {
  for (const int ops : {256, 257, 300}) {
    CAPTURE(ops);
    const Planner planner(line_profile(ops));
    const Plan plan = planner.plan(planner.budget_bytes("50%"));
    CHECK(plan.feasible);
    CHECK(plan.table.size() == 2 * static_cast<size_t>((ops + 17) / 18));
  }
}

TEST_CASE("A merged type of more ops than run as one region is refused",
          "[policy][profile][faults]") {
  Profile profile = line_profile(130);
  profile.block_types.push_back(profile.block_types[0]);
  profile.block_types[1].name = "other";
  profile.chain = {0, 1};
  BlockType merged = profile.block_types[0];
  merged.name = "merged";
  for (ProfileOp& part : profile.block_types[1].ops) {
    part.name += "b";
    ProfileOp& both = merged.ops.emplace_back(part);
    for (auto* names : {&both.ins, &both.bwd_needs}) {
      for (std::string& name : *names) name = name == "in" ? "t129" : name + "b";
    }
    both.outs[0].name += "b";
  }
  merged.output = "t129b";
  profile.block_types.push_back(merged);
  profile.merge_patterns = {{{0, 1}, 2}};
  CHECK_THAT(remat::test::fault_of(profile, [](Profile&) {}),
             ContainsSubstring("[profile] changed: merge_patterns[0].block_type (type 'merged'): "
                               "expected at most 256 ops, got 260"));
}

TEST_CASE("Budgets beyond 2^53 bytes are not rounded", "[policy][planner][budget][faults]") {
  Profile profile = two_regions();
  profile.merge_patterns.clear();
  for (BlockType& type : profile.block_types) type.ops[0].outs[0].bytes = (int64_t{1} << 50) - 1;
  profile.block_types[0].ops[0].bwd_tmp_bytes = int64_t{1} << 50;
  profile.chain = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const Planner planner(profile);
  const int64_t peak = planner.frontier().no_checkpoint_peak_bytes();
  REQUIRE(peak > int64_t{1} << 53);
  for (const int64_t bytes : {peak, peak - 1, peak + 1})
    CHECK(planner.budget_bytes(std::to_string(bytes) + "B") == bytes);
  CHECK(planner.budget_bytes("9007199254740993B") == 9007199254740993);
  CHECK(planner.budget_bytes("100%") == peak);
  CHECK(planner.budget_bytes("1") == peak);
  CHECK(planner.budget_bytes("1.5kB") == 1500);
  CHECK_THROWS_WITH(planner.budget_bytes("9223372036854775807GB"), ContainsSubstring("[planner]"));
}

TEST_CASE("Times that would become 0 are refused", "[policy][profile][faults]") {
  CHECK_THAT(remat::test::fault_of(two_regions(),
                                   [](Profile& p) { p.block_types[0].ops[0].fwd_us = 4e-7; }),
             ContainsSubstring("ops[0].fwd (type 'A', op 'a'): expected 0, or 1e-6 us or more, got "
                               "4e-07"));
  CHECK_THAT(remat::test::fault_of(two_regions(),
                                   [](Profile& p) { p.block_types[0].ops[0].fwd_us = 1e300; }),
             ContainsSubstring("expected 0 to 1e9 us, got 1e+300"));
}

TEST_CASE("Names with control characters are refused", "[policy][profile][faults]") {
  for (const char* name : {"a\x1b[31m", "a\n", "\x7f", "\xc2\x9b", "\xef\xbf\xbe"}) {
    const std::string fault = remat::test::fault_of(two_regions(), [&](Profile& p) {
      p.merge_patterns.clear();
      p.block_types[0].ops[0].name = name;
    });
    CHECK_THAT(fault, ContainsSubstring("block_types[0].ops[0].name: expected a name without "
                                        "control characters, got one that has some"));
  }
  for (const char* name : {"Schicht 1", "\xc3\xa4", "\xe5\xb1\x82"}) {
    CHECK(remat::test::fault_of(two_regions(), [&](Profile& p) { p.name = name; }) == "no error");
  }
}

TEST_CASE("Keys given twice are looked for in linear time", "[policy][profile][faults]") {
  // In quadratic time this takes minutes, so the suite's time limit would end it.
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += "\"k" + std::to_string(i) + "\": 0,\n";
  CHECK_THROWS_WITH(
      Profile::from_json(text + "\"k7\": 0}", "keys.json"),
      ContainsSubstring("[profile] keys.json:300001: key \"k7\": expected once in its "
                        "object, got it twice"));
}
