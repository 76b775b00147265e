// SPDX-License-Identifier: BSD-3-Clause

// Validation and digests of step profiles, and simulation of cuts.
#include <remat/memory_plan/step_profile.h>
#include <remat/planner/digest.h>

#include "step_check.h"
#include "step_simulator.h"

namespace remat {

void StepProfile::validate(const std::string& source) const {
  detail::raise_faults("memory plan", source, nullptr, [&] { detail::check_profile(*this); });
}

void StepCuts::validate(const StepProfile& profile, const std::string& source) const {
  detail::raise_faults("memory plan", source, nullptr, [&] { detail::check_cuts(*this, profile); });
}

StepSimulation simulate_step(const StepProfile& profile, const StepCuts& cuts,
                             const OffloadTerms& offload) {
  profile.validate();
  cuts.validate(profile);
  const detail::StepGraph graph(profile);
  std::vector<char> keep = detail::kept_flags(profile, cuts);
  detail::StepSimulator simulator(graph, cuts.positions, cuts.groups, offload);
  return simulator.run(keep, detail::MissingValues::kRefuse);
}

std::string StepProfile::caution() const {
  if (device.empty()) return "";
  std::string text = "times are of the thread that launches, not of " + device +
                     ": peaks hold, predicted overheads do not";
  if (!other_devices.empty())
    text += "; bytes are memory of " + device + " alone, without that of " + other_devices;
  return text;
}

std::string StepProfile::digest() const {
  detail::Digest all;
  for (const StepRecord& record : records)
    all.add(static_cast<int64_t>(detail::record_digest(*this, record)));
  for (const StepSlot& slot : slots) {
    all.add(slot.value);
    all.add(slot.record);
    if (slot.is_dropped()) all.add(slot.node);
  }
  return all.hex();
}

}  // namespace remat
