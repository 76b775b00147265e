// SPDX-License-Identifier: BSD-3-Clause

// A damaged file is refused by name and line, or it is another valid file and everything that the
// planner says of it is true.
#include "damage/mutation.h"

#include <string>
#include <vector>

#include <remat/planner/planner.h>

#include "damage/read_mutants.h"
#include "planner/chain/test_data.h"
#include "support/catch.h"

namespace {

using remat::Plan;
using remat::Planner;
using remat::Profile;
using remat::test::read_mutants;
using remat::test::Tally;

/// True for "[profile] mutant.json:12: place: expected ..., got .... What to do."
bool names_the_place(const std::string& what, const std::string& text) {
  const std::string head = "[" + what + "] mutant.json:";
  if (text.rfind(head, 0) != 0 || text.find(": expected ") == std::string::npos ||
      text.find(", got ") == std::string::npos) {
    return false;
  }
  const size_t colon = text.find(':', head.size());
  return colon != std::string::npos && colon > head.size() &&
         text.find_first_not_of("0123456789", head.size()) == colon;
}

/// Returns an empty text if all that the planner says of the profile is true.
std::string fault_of(const Profile& profile) {
  const Profile again = Profile::from_json(profile.to_json());
  if (again.digest() != profile.digest()) return "written and read back it is another profile";
  if (profile.chain.size() > 12) return "";  // A long chain takes long, and tests nothing else.
  const Planner planner(profile);
  const int64_t least = planner.frontier().least_budget_bytes();
  const int64_t peak = planner.frontier().no_checkpoint_peak_bytes();
  for (const int64_t budget : {least, (least + peak) / 2, peak}) {
    const Plan plan = planner.plan(budget);  // throws if its replay differs
    if (!plan.feasible || plan.simulated_peak_bytes > budget) return "a plan does not fit";
    if (plan.lower_bound > plan.overhead) return "a bound above a plan";
  }
  return least > 0 && planner.plan(least - 1).feasible ? "a plan below the least budget" : "";
}

}  // namespace

TEST_CASE("A damaged profile is refused with its line, or is a profile",
          "[policy][profile][fuzz]") {
  std::vector<std::string> texts;
  std::vector<std::string> digests;
  for (const auto& path : remat::test::instances("small_")) {
    texts.push_back(remat::test::read_file(path));
    // to_json() lacks the expected answers, so mutations hit what is read.
    const Profile profile = Profile::from_json(texts.back());
    texts.push_back(profile.to_json());
    digests.push_back(Profile::from_json(texts[texts.size() - 2]).digest());
    digests.push_back(profile.digest());
  }
  const auto fault = [&](size_t which, const std::string& text, Tally& tally) -> std::string {
    const Profile profile = Profile::from_json(text, "mutant.json");
    ++tally.accepted;
    if (profile.digest() == digests[which]) return "";
    ++tally.changed;
    return fault_of(profile);
  };
  const Tally tally = read_mutants(
      texts, [](const std::string& text) { return names_the_place("profile", text); }, fault);
  WARN(tally.read << " files, " << tally.refused << " refused, " << tally.accepted
                  << " accepted, of which " << tally.changed << " are other profiles");
  CHECK(tally.refused > tally.read / 4);
  CHECK(tally.changed > remat::test::mutants_per_damage() / 50);
}
