// SPDX-License-Identifier: BSD-3-Clause

// Features of the planner beside optima: budgets in words, reasons, cut regions, other classes of
// plans.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>

#include <remat/planner/planner.h>

#include "planner/chain/test_data.h"
#include "support/catch.h"

using remat::Plan;
using remat::Planner;
using remat::Policy;
using remat::Profile;

namespace {

Profile load(const std::string& name) {
  return Profile::from_json(remat::test::read_file(remat::test::planner_data() / (name + ".json")),
                            name);
}

remat::ProfileOp op(const std::string& name, const std::string& in, const std::string& out,
                    int64_t bytes, double fwd_us) {
  remat::ProfileOp made;
  made.name = name;
  made.fwd_us = fwd_us;
  made.bwd_us = 2 * fwd_us;
  made.ins = {in};
  made.outs = {{out, bytes}};
  made.bwd_needs = {in};
  return made;
}

/// One region of `ops` ops, each of which reads the one before it; each tensor has `bytes` bytes.
remat::BlockType line(const std::string& name, int ops, int64_t bytes) {
  remat::BlockType type;
  type.name = name;
  type.input_bytes = bytes;
  std::string last = "in";
  for (int i = 0; i < ops; ++i) {
    const std::string out = "t" + std::to_string(i);
    type.ops.push_back(op(name + ".op" + std::to_string(i), last, out, bytes, 1 + i % 3));
    last = out;
  }
  type.output = last;
  return type;
}

Profile line_profile(int ops, int regions) {
  Profile profile;
  profile.name = "line";
  profile.block_types = {line("line", ops, 8)};
  profile.chain.assign(static_cast<size_t>(regions), 0);
  return profile;
}

}  // namespace

TEST_CASE("Budgets are understood as people write them", "[policy][planner][budget]") {
  const Planner planner(load("large_gpt2l_2x512_v100"));
  const int64_t peak = 6935764996;
  CHECK(planner.budget_bytes("2.5GiB") == 2684354560);
  CHECK(planner.budget_bytes("300 MB") == 300000000);
  CHECK(planner.budget_bytes("4096B") == 4096);
  CHECK(planner.budget_bytes("60%") == 4161458997);
  CHECK(planner.budget_bytes("100%") == peak);
  CHECK(planner.budget_bytes("0") == planner.layer_checkpoint().simulated_peak_bytes);
  CHECK(planner.budget_bytes("1") == peak);
  for (const char* text :
       {"", "lots", "2.5", "-1", "-5%", "nan", "inf", "3 parsec", "1e40GiB", "60%%", "GiB"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(planner.budget_bytes(text),
                      ContainsSubstring("[planner] budget: expected bytes with a unit"));
  }
  CHECK_THROWS_WITH(planner.plan(-1),
                    ContainsSubstring("[planner] budget: expected 0 bytes or more, got -1"));
}

TEST_CASE("An infeasible budget says the least that fits, and which region holds it",
          "[policy][planner][errors]") {
  const Planner planner(load("large_gpt2l_2x512_v100"));
  const Plan plan = planner.plan(400000000);
  CHECK_FALSE(plan.feasible);
  // Two tensors of logits, 2 * 512 * 50257 * 4 bytes each, fill the head's forward.
  CHECK(plan.least_budget_bytes == 422207492);
  CHECK(plan.peak_region == "region 73 'head', forward");
  CHECK_THAT(plan.to_json(), ContainsSubstring("\"least_budget\": 422207492"));
}

TEST_CASE("The same profile gives the same plan, byte for byte", "[policy][planner]") {
  const Profile profile = load("large_gpt2l_8x1024_a100_flash_cce");
  const Planner once(profile);
  const Planner again(profile);
  const Planner copy = once;
  for (const char* budget : {"5%", "12.2%", "25%", "50%"}) {
    const std::string text = once.plan(once.budget_bytes(budget)).to_json();
    CHECK(text == again.plan(again.budget_bytes(budget)).to_json());
    std::string from_thread;
    std::thread([&] { from_thread = copy.plan(copy.budget_bytes(budget)).to_json(); }).join();
    CHECK(text == from_thread);
  }
}

TEST_CASE("Less memory than a plan needs per region makes groups that nest", "[policy][planner]") {
  // 64 equal regions in the least memory: groups in groups.
  const Planner planner(line_profile(3, 64));
  const Plan plan = planner.plan(planner.frontier().least_budget_bytes());
  REQUIRE(plan.feasible);
  CHECK(plan.groups.size() >= 10);
  CHECK(plan.simulated_peak_bytes * 10 < planner.frontier().no_checkpoint_peak_bytes());
  const bool nested =
      std::any_of(plan.groups.begin(), plan.groups.end(), [&](const remat::PlanGroup& inner) {
        return std::any_of(plan.groups.begin(), plan.groups.end(),
                           [&](const remat::PlanGroup& outer) {
                             return outer.first <= inner.first && inner.next < outer.next;
                           });
      });
  CHECK(nested);
}

TEST_CASE("Fewer breakpoints cost time and never memory", "[policy][planner]") {
  const Profile profile = load("large_gpt2m_4x512_v100");
  const Planner exact(profile);
  const Planner thin(profile, {.max_breakpoints = 100});
  CHECK(exact.frontier().exact());
  CHECK_FALSE(thin.frontier().exact());
  for (const char* budget : {"15%", "30%", "60%"}) {
    const Plan plan = thin.plan(thin.budget_bytes(budget));
    CHECK(plan.simulated_peak_bytes <= plan.budget_bytes);
    CHECK(plan.overhead >= exact.plan(plan.budget_bytes).overhead);
    CHECK(plan.overhead < exact.plan(plan.budget_bytes).overhead + 0.05);
  }
}

TEST_CASE("A region of many ops is cut where single tensors pass", "[policy][planner][split]") {
  // 40 ops, each of which reads the one before it, are cut into parts of 18, 18 and 4; as one
  // region they would be too many to enumerate.
  const Planner planner(line_profile(40, 3));
  const Plan plan = planner.plan(planner.budget_bytes("40%"));
  REQUIRE(plan.table.size() == 9);
  for (int i = 0; i < 9; ++i) {
    CHECK(plan.table[i].region == "line");
    CHECK(plan.table[i].part == i % 3);
    CHECK(plan.table[i].ops.size() == (i % 3 == 2 ? 4 : 18));
  }
  CHECK(plan.table[1].ops.front().name == "line.op18");
  CHECK(plan.feasible);
  CHECK(plan.overhead - plan.lower_bound < 0.02);
}

TEST_CASE("No cut where a second tensor passes", "[policy][planner][split]") {
  // Op 30 reads the result of op 10, so cuts are possible only after ops 0 to 10 and 30 to 38. Ops
  // 11 to 30 stay one part, although parts of more than 18 are avoided: 11 + 20 + 9.
  Profile profile = line_profile(40, 2);
  profile.block_types[0].ops[30].ins.emplace_back("t10");
  const Plan plan = Planner(profile).plan(1 << 20);
  REQUIRE(plan.table.size() == 6);
  CHECK(plan.table[0].ops.size() == 11);
  CHECK(plan.table[1].ops.size() == 20);
  CHECK(plan.table[2].ops.size() == 9);
}

TEST_CASE("The hull's policies come close to all policies", "[policy][planner][hull]") {
  // Every op reads the input too, so two tensors cross at each position and no cut is possible.
  Profile few = line_profile(16, 4);
  for (size_t i = 1; i < 16; ++i) few.block_types[0].ops[i].ins.emplace_back("in");
  // With three more ops without time and bytes there are 19, too many to enumerate: the hull is
  // used. Times and bytes stay the same.
  Profile many = few;
  for (int i = 0; i < 3; ++i) {
    remat::ProfileOp nothing =
        op("nothing" + std::to_string(i), "in", "n" + std::to_string(i), 0, 0);
    nothing.bwd_needs.clear();
    many.block_types[0].ops.insert(many.block_types[0].ops.begin(), nothing);
  }
  const Planner exact(few);
  const Planner hull(many);
  REQUIRE(hull.plan(1 << 20).table.size() == 4);
  CHECK(hull.frontier().no_checkpoint_peak_bytes() == exact.frontier().no_checkpoint_peak_bytes());
  for (const char* budget : {"40%", "50%", "60%", "70%", "80%", "90%", "100%"}) {
    CAPTURE(budget);
    const Plan plan = hull.plan(exact.budget_bytes(budget));
    const Plan best = exact.plan(exact.budget_bytes(budget));
    REQUIRE(plan.feasible);
    CHECK(plan.overhead >= best.overhead);
    CHECK(plan.overhead <= best.overhead + 0.005);
  }
}

TEST_CASE("A region of more ops than can be handled is named", "[policy][planner][errors]") {
  Profile profile = line_profile(300, 1);
  for (size_t i = 1; i < profile.block_types[0].ops.size(); ++i)
    profile.block_types[0].ops[i].ins.emplace_back("in");
  CHECK_THROWS_WITH(
      Planner(profile),
      ContainsSubstring("block_types[0].ops (type 'line'): expected at most 256 ops") &&
          ContainsSubstring("got 300. Make more regions of it."));
}

TEST_CASE("Types of equal numbers are one to the planner, whatever their names",
          "[policy][planner]") {
  Profile profile = line_profile(3, 6);
  const Plan plan = Planner(profile).plan(60);
  profile.block_types.push_back(line("twin", 3, 8));
  for (size_t i = 1; i < profile.chain.size(); i += 2) profile.chain[i] = 1;
  const Plan twins = Planner(profile).plan(60);
  CHECK(twins.total_time_us == plan.total_time_us);
  CHECK(twins.table[1].region == "twin");
  CHECK(twins.table[1].ops[0].name == "twin.op0");
}

TEST_CASE("Checkpointed layers are never better", "[policy][planner][baselines]") {
  const Profile profile = load("large_gpt2l_2x512_v100");
  const Planner planner(profile);
  const Plan layers = planner.layer_checkpoint();
  CHECK(planner.plan(layers.simulated_peak_bytes).overhead < layers.overhead);
  // All ops of the 36 layers but the last add of each run again.
  CHECK(layers.groups.empty());
  CHECK(layers.table[1].run_count == 2);
}
