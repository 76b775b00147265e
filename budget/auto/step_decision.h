// SPDX-License-Identifier: BSD-3-Clause

// The decision how steps run after measuring, and its text for other processes.
#pragma once

#include <optional>
#include <string>

#include <remat/planner/memory_plan.h>
#include <remat/planner/step_profile.h>

namespace remat {

/// A plan, or the reason why there is none. With neither, steps run unchanged.
struct StepDecision {
  std::optional<MemoryPlan> plan{};
  std::string limit{};  ///< Why no plan is within the budget
};

/// Text of a decision; "" if more steps must be measured first.
std::string text_of(const std::optional<StepDecision>& decision);

/// Reads what text_of() of another process wrote; nullopt for "". `profile`: the step as this
/// process has measured it. `offload`: the terms of this process's store; empty `places` mean that
/// there is no store. Throws std::logic_error if the text is cut short, or its cuts cannot run
/// here.
std::optional<StepDecision> decision_from(const std::string& text, const StepProfile& profile,
                                          const OffloadTerms& offload);

}  // namespace remat
