// SPDX-License-Identifier: BSD-3-Clause

// A plan in a file, with what it was made for.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/memory_budget.h>
#include <remat/tape/expected_tape.h>

#include "step_variant.h"

namespace remat {

/// The file that AutoCheckpointOptions names, if any. Any thread.
class PlanFile {
 public:
  /// For the function of that name. Throws ValueError if no plan can be read or saved there.
  PlanFile(std::string path, std::string name);

  /// True if a plan is there; then load(), else save().
  bool exists() const;

  /// The kind of step that it was made for, planned for this budget and store. Throws
  /// std::invalid_argument for what is no plan file, ValueError for one of another torch, for one
  /// that moves results if there is no store, and if no plan is within the budget.
  std::shared_ptr<StepVariant> load(const MemoryBudget& budget, const OffloadTerms& offload) const;

  /// Returns why it is not saved; "" if it is, or if there is to be no file.
  std::string save(const StepVariant& variant, const MemoryBudget& budget) const;

  /// The first step has other arguments than the one that the plan was made for.
  std::string words_of_other_step() const;

  /// Throws ValueError: the plan is for other ops.
  [[noreturn]] void refuse(const TapeDifference& difference) const;

  const std::string& path() const { return path_; }

 private:
  std::string words() const;
  void check_writable() const;

  const std::string path_;
  const std::string name_;
};

}  // namespace remat
