// SPDX-License-Identifier: BSD-3-Clause

// What steps of a kind run by once they are measured, and its text for other processes.
#pragma once

#include <optional>
#include <string>

#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/step_profile.h>

namespace remat {

/// A plan, or a limit; without either steps run as they are.
struct StepDecision {
  std::optional<MemoryPlan> plan{};
  std::string limit{};  ///< Why no plan is within the budget
};

/// "": more steps are to be measured first.
std::string text_of(const std::optional<StepDecision>& decision);

/// What another process has decided, for the step that this one has measured and its own store.
/// Throws std::invalid_argument or std::logic_error for cuts by which that cannot run.
std::optional<StepDecision> decision_from(const std::string& text, const StepProfile& profile,
                                          const OffloadTerms& offload);

}  // namespace remat
