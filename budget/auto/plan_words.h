// SPDX-License-Identifier: BSD-3-Clause

// Messages of auto_checkpoint(), and the text of a signature in a plan file.
#pragma once

#include <map>
#include <string>

#include <remat/budget/auto_checkpoint.h>
#include <remat/memory_plan/memory_plan.h>
#include <remat/tape/cuts.h>

namespace remat {

/// Prefix of messages: "[auto_checkpoint] 'model': ".
std::string where_of(const std::string& name);

std::string words_of_measuring(const Cuts& cuts, int steps);

/// For example "fits 8.00 GB: peak 7.90 GB of 12.10 GB, 12.0 % of the step runs again; no plan is
/// below 11.0 %".
std::string words_of(const MemoryPlan& plan);

/// The error for an infeasible plan.
std::string words_of_limit(const std::string& name, const MemoryPlan& plan,
                           const std::string& budget);

std::map<std::string, std::string> words_of(const StepSignature& signature);
StepSignature signature_from(const std::map<std::string, std::string>& words);

}  // namespace remat
