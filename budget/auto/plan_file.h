// SPDX-License-Identifier: BSD-3-Clause

// A plan file, and the checks that the plan is for this function and process.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/memory_budget.h>
#include <remat/engine/expected_tape.h>

#include "step_variant.h"

namespace remat {

/// The file that AutoCheckpointOptions::plan_file names; an empty path means no file. Any thread.
class PlanFile {
 public:
  /// `name`: the function's, for errors. Throws ValueError if `path` can be neither read nor saved.
  PlanFile(std::string path, std::string name);

  /// True if the file is there, so that load() can read it.
  bool exists() const;

  /// The variant that the file's plan was made for, planned for this budget and store. Throws
  /// std::invalid_argument if the file is no plan file; ValueError if auto_checkpoint() has not
  /// saved it, if it was made with another torch, if its plan offloads and there is no store, or if
  /// no plan is within the budget.
  std::shared_ptr<StepVariant> load(const MemoryBudget& budget, const OffloadTerms& offload) const;

  /// Saves the variant's plan. Returns the error, or "" if it was saved or there is no file.
  std::string save(const StepVariant& variant, const MemoryBudget& budget) const;

  /// A warning that the first step has other arguments than those the plan was made for.
  std::string other_step_warning() const;

  /// Throws a ValueError: the plan is for other ops.
  [[noreturn]] void refuse(const TapeDifference& difference) const;

  const std::string& path() const { return path_; }

 private:
  std::string prefix() const;
  void check_writable() const;

  const std::string path_;
  const std::string name_;
};

}  // namespace remat
