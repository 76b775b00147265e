// SPDX-License-Identifier: BSD-3-Clause

// A plan with the step that it was made for, in a file.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <remat/memory_plan/memory_plan.h>
#include <remat/policy/export.h>

namespace remat {

/// A plain value.
struct REMAT_API MemoryPlanFile {
  /// What else the plan depends on, by name: {"torch": "2.11.0", "device": "cpu"}.
  std::map<std::string, std::string> made_with;
  MemoryPlan plan;  ///< With its profile

  std::string to_json() const;

  /// @throws std::invalid_argument as StepProfile::from_json and MemoryPlan::from_json do.
  static MemoryPlanFile from_json(std::string_view text, const std::string& source = "plan file");

  /// Writes the file; a file that is there is replaced when all is written.
  /// @throws std::runtime_error `[memory plan] path: ...` if that fails.
  void save(const std::string& path) const;

  /// Throws as from_json, and as save if the file cannot be read.
  static MemoryPlanFile load(const std::string& path);
};

}  // namespace remat
