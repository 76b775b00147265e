// SPDX-License-Identifier: BSD-3-Clause

// Validation and digests of step profiles, and simulation of cuts.
#include <remat/memory_plan/step_profile.h>

#include "step_digest.h"
#include "step_fault.h"
#include "step_simulator.h"

namespace remat {

void StepProfile::validate(const std::string& source) const {
  if (const auto fault = detail::find_fault(*this)) detail::raise_fault(*fault, source);
}

void StepCuts::validate(const StepProfile& profile, const std::string& source) const {
  if (const auto fault = detail::find_fault(*this, profile)) detail::raise_fault(*fault, source);
}

StepSimulation simulate_step(const StepProfile& profile, const StepCuts& cuts,
                             const ReplayCosts& costs, const OffloadTerms& offload) {
  profile.validate();
  cuts.validate(profile);
  const detail::StepGraph graph(profile);
  std::vector<char> keep = detail::kept_flags(profile, cuts);
  detail::StepSimulator simulator(graph, cuts.positions, cuts.groups, costs, offload);
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
