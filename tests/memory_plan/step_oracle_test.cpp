// SPDX-License-Identifier: BSD-3-Clause

// The simulator against a slow one, on random steps.
#include "memory_plan/step_oracle.h"

#include <stdexcept>

#include "damage/read_mutants.h"
#include "memory_plan/random_step.h"
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

}  // namespace
