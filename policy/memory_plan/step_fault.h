// SPDX-License-Identifier: BSD-3-Clause

// A fault of a profile or of cuts.
#pragma once

#include <optional>
#include <string>

#include <remat/memory_plan/step_cuts.h>

namespace remat::detail {

struct StepFault {
  std::string path;  ///< Path as in JSON, "records[3].reads[0]"
  std::string expected;
  std::string got;
  std::string advice;
};

std::optional<StepFault> find_fault(const StepProfile& profile);
std::optional<StepFault> find_fault(const StepCuts& cuts, const StepProfile& profile);

/// @throws std::invalid_argument
[[noreturn]] void raise_fault(const StepFault& fault, const std::string& where);

}  // namespace remat::detail
