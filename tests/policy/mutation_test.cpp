// SPDX-License-Identifier: BSD-3-Clause

// A damaged file is refused by name and line, or it is another valid file and everything said of it
// is true.
#include "policy/mutation.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <remat/policy/planner.h>

#include "policy/test_data.h"
#include "support/catch.h"

namespace {

using remat::Plan;
using remat::Planner;
using remat::Profile;
using remat::test::mutated;

constexpr uint64_t files_per_program =
    3;  // 3 * 2,000 * 20 shards: a campaign reads 120,000 of each kind.

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// "[profile] mutant.json:12: place: expected ..., got .... What to do."
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

/// Empty if all that the planner says of the profile is true.
std::string fault_of(const Profile& profile) {
  const Profile again = Profile::from_json(profile.to_json());
  if (again.digest() != profile.digest()) return "written and read back it is another profile";
  if (profile.chain.size() > 12)
    return "";  // A long chain takes long; what it says is no different.
  const Planner planner(profile);
  const int64_t least = planner.frontier().least_budget_bytes();
  const int64_t peak = planner.frontier().no_checkpoint_peak_bytes();
  for (const int64_t budget : {least, (least + peak) / 2, peak}) {
    const Plan plan = planner.plan(budget);  // Throws if its replay differs.
    if (!plan.feasible || plan.simulated_peak_bytes > budget) return "a plan does not fit";
    if (plan.lower_bound > plan.overhead) return "a bound above a plan";
    if (Plan::from_json(plan.to_json(), profile).to_json() != plan.to_json())
      return "a plan changes when it is read back";
  }
  return least > 0 && planner.plan(least - 1).feasible ? "a plan below the least budget" : "";
}

struct Tally {
  uint64_t refused = 0;
  uint64_t accepted = 0;
  uint64_t changed = 0;  ///< Accepted, and another profile than before
};

/// Damages `texts` one after the other, with one seed each, and counts what becomes of them.
/// `fault(which, text, tally)` reads one, throws its error or counts it, and returns what is wrong.
template <class Fault>
Tally read_mutants(const std::string& what, const std::vector<std::string>& texts, uint64_t count,
                   Fault&& fault) {
  const uint64_t first = from_environment("REMAT_FUZZ_SHARD", 0) * count;
  Tally tally;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const size_t which = seed % texts.size();
    const std::string text = mutated(texts[which], random);
    std::string found;
    try {
      found = fault(which, text, tally);
    } catch (const std::invalid_argument& error) {
      ++tally.refused;
      if (!names_the_place(what, error.what()))
        found = std::string("an error without its place: ") + error.what();
    } catch (const std::exception& error) {
      found = std::string("not an error of the file: ") + error.what();
    }
    if (!found.empty()) FAIL("seed " << seed << ": " << found << "\n" << text);
  }
  return tally;
}

}  // namespace

TEST_CASE("A damaged profile is refused with its line, or is a profile",
          "[policy][profile][fuzz]") {
  const uint64_t count = files_per_program * from_environment("REMAT_FUZZ_N", 5000);
  std::vector<std::string> texts;
  std::vector<std::string> digests;
  for (const auto& path : remat::test::instances("small_")) {
    texts.push_back(remat::test::read_file(path));
    // Without the expected answers, so that changes hit what is read; with a link, so that OFFLOAD
    // is planned.
    Profile profile = Profile::from_json(texts.back());
    profile.link_gbps = 1e-3;
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
  const Tally tally = read_mutants("profile", texts, count, fault);
  WARN(tally.refused << " refused, " << tally.accepted << " accepted, of which " << tally.changed
                     << " are other profiles");
  CHECK(tally.refused > count / 4);
  CHECK(tally.changed > count / 50);
}

TEST_CASE("A damaged plan is refused with its line, or is a plan that does what it says",
          "[policy][plan][fuzz]") {
  const uint64_t count = files_per_program * from_environment("REMAT_FUZZ_N", 5000);
  std::vector<Profile> profiles;
  std::vector<std::string> texts;
  for (const auto& path : remat::test::instances("small_")) {
    Profile profile = Profile::from_json(remat::test::read_file(path));
    for (const double link_gbps : {0.0, 1e-3}) {
      profile.link_gbps = link_gbps;
      const Planner planner(profile);
      const int64_t least = planner.frontier().least_budget_bytes();
      const int64_t peak = planner.frontier().no_checkpoint_peak_bytes();
      for (const int64_t budget : {least - 1, least, (2 * least + peak) / 3, (least + peak) / 2}) {
        profiles.push_back(profile);
        texts.push_back(planner.plan(budget).to_json());
      }
    }
  }
  const auto fault = [&](size_t which, const std::string& text, Tally& tally) -> std::string {
    const Plan plan = Plan::from_json(text, profiles[which], "mutant.json");
    ++tally.accepted;
    const std::string written = plan.to_json();
    tally.changed += written != texts[which];
    if (Plan::from_json(written, profiles[which]).to_json() != written)
      return "it changes when it is read back";
    const bool fits = !plan.feasible || plan.simulated_peak_bytes <= plan.budget_bytes;
    return fits ? "" : "it does not fit its budget";
  };
  const Tally tally = read_mutants("plan", texts, count, fault);
  WARN(tally.refused << " refused, " << tally.accepted << " accepted, of which " << tally.changed
                     << " say something else");
  CHECK(tally.refused > count / 4);
}
