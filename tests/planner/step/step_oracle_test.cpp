// SPDX-License-Identifier: BSD-3-Clause

// The simulator against the slow simulation, on random steps.
#include "planner/step/step_oracle.h"

#include <stdexcept>

#include "damage/read_mutants.h"
#include "planner/step/random_step.h"
#include "support/catch.h"

using remat::StepCuts;
using remat::StepProfile;
using remat::StepSimulation;
using remat::test::OracleResult;

namespace {

TEST_CASE("A simulation agrees with the slow one on random steps", "[memory_plan][fuzz]") {
  const uint64_t count = 10 * remat::test::from_environment("REMAT_FUZZ_N", 2000);
  const uint64_t shard = remat::test::from_environment("REMAT_FUZZ_SHARD", 0);
  uint64_t refused = 0;
  uint64_t grouped = 0;
  for (uint64_t seed = shard * count; seed < (shard + 1) * count; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const StepProfile profile = remat::test::random_step(random);
    REQUIRE_NOTHROW(profile.validate());
    const StepCuts cuts = remat::test::random_cuts(profile, seed % 3 > 0, random);
    const OracleResult slow = remat::test::oracle(profile, cuts);
    INFO("seed " << seed);
    if (!slow.possible) {
      ++refused;
      REQUIRE_THROWS_AS(remat::simulate_step(profile, cuts), std::logic_error);
      continue;
    }
    const StepSimulation fast = remat::simulate_step(profile, cuts);
    grouped += cuts.groups.empty() ? 0 : 1;
    REQUIRE(fast.forward_peak_bytes == slow.forward_peak_bytes);
    REQUIRE(fast.kept_bytes == slow.kept_bytes);
    REQUIRE(fast.runs == slow.runs);
    REQUIRE(fast.replays == slow.replays);
    REQUIRE(fast.rerun_us == slow.rerun_us);
    REQUIRE(fast.peak_bytes == slow.peak_bytes);
  }
  CHECK(refused > count / 20);
  CHECK(refused < count / 2);
  CHECK(grouped > count / 4);
}

/// Offloads half of the kept values.
StepCuts with_offload(StepCuts cuts, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (remat::KeptResult& kept : cuts.keep)
    kept.policy = random() % 2 == 0 ? remat::Policy::kOffload : remat::Policy::kSave;
  return cuts;
}

TEST_CASE("A step that moves what it keeps never takes more than is predicted",
          "[memory_plan][fuzz]") {
  const uint64_t count = 10 * remat::test::from_environment("REMAT_FUZZ_N", 2000);
  const uint64_t shard = remat::test::from_environment("REMAT_FUZZ_SHARD", 0);
  uint64_t moved = 0;
  uint64_t equal = 0;
  for (uint64_t seed = shard * count; seed < (shard + 1) * count; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const StepProfile profile = remat::test::random_step(random);
    const StepCuts cuts = with_offload(remat::test::random_cuts(profile, true, random), seed);
    const OracleResult slow = remat::test::oracle(profile, cuts, true);
    INFO("seed " << seed);
    if (slow.offloaded_bytes == 0) continue;
    remat::OffloadTerms terms{.places = {{.out_gbps = 1, .in_gbps = 1}}};
    const StepSimulation fast = remat::simulate_step(profile, cuts, terms);
    REQUIRE(fast.offloaded_bytes == slow.offloaded_bytes);
    REQUIRE(fast.forward_peak_bytes == slow.forward_peak_bytes);
    REQUIRE(fast.kept_bytes == slow.kept_bytes);
    REQUIRE(fast.runs == slow.runs);
    REQUIRE(fast.peak_bytes >= slow.peak_bytes);
    ++moved;
    equal += fast.peak_bytes == slow.peak_bytes ? 1 : 0;
    terms.prefetch_bytes = static_cast<int64_t>(random() % 100);
    terms.max_leaving_bytes = static_cast<int64_t>(random() % 100);
    const StepSimulation loose = remat::simulate_step(profile, cuts, terms);
    const int64_t more = loose.peak_bytes - fast.peak_bytes;
    REQUIRE(more >= 0);
    REQUIRE(more <= terms.prefetch_bytes + terms.max_leaving_bytes);
  }
  CHECK(moved > count / 10);
  CHECK(equal > moved * 7 / 10);  // A value that two units hold at once counts twice.
}

}  // namespace
