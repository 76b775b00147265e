// SPDX-License-Identifier: BSD-3-Clause

// A plan file, with what the plan was made for.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/memory_budget.h>
#include <remat/engine/expected_tape.h>

#include "step_variant.h"

namespace remat {

/// The file that AutoCheckpointOptions names, or no file. Any thread.
class PlanFile {
 public:
  /// `name`: the function's, for errors. Throws ValueError if no plan can be read or saved there.
  PlanFile(std::string path, std::string name);

  /// True if the file has a plan, which load() then reads; otherwise use save().
  bool exists() const;

  /// The variant that the file's plan was made for, planned for this budget and store. Throws
  /// std::invalid_argument if the file is no plan file; ValueError if it was made with another
  /// torch, if it moves results and there is no store, or if no plan is within the budget.
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
