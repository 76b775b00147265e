// SPDX-License-Identifier: BSD-3-Clause

// A file with a plan and the profile of the step it was made for.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <remat/planner/memory_plan.h>
#include <remat/policy/export.h>

namespace remat {

/// The content of a plan file. Copies are independent.
struct REMAT_API MemoryPlanFile {
  /// Other facts that the plan depends on, by name: {"torch": "2.11.0", "device": "cpu"}.
  std::map<std::string, std::string> made_with;
  MemoryPlan plan;  ///< Includes its profile

  std::string to_json() const;

  /// @throws std::invalid_argument as StepProfile::from_json and MemoryPlan::from_json do.
  static MemoryPlanFile from_json(std::string_view text, const std::string& source = "plan file");

  /// Writes the file. An existing file is replaced only after all is written.
  /// @throws std::runtime_error `[memory plan] path: ...` on failure.
  void save(const std::string& path) const;

  /// Throws as from_json() does, and std::runtime_error as save() does if the file cannot be read.
  static MemoryPlanFile load(const std::string& path);
};

}  // namespace remat
