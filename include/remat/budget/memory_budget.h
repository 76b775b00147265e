// SPDX-License-Identifier: BSD-3-Clause

// Parsing of a step's memory budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <remat/engine/export.h>
#include <remat/planner/memory_planner.h>

namespace remat {

/// A memory budget as text. "8GB", "2.5 GiB": bytes above what is alive when the step begins.
/// "60%": share of the peak of a step that keeps everything. "fraction:0.5": a point between the
/// least that a plan needs (0) and the peak of a step that keeps everything (1). "device:16GB":
/// memory of the device, less weights, gradients and optimizer states. Any thread may read it.
class REMAT_API MemoryBudget {
 public:
  /// @throws c10::ValueError for any other text, with a message that begins with `where`.
  MemoryBudget(std::string text, const std::string& where);

  const std::string& text() const { return text_; }

  /// True for "60%" and "fraction:0.5", whose bytes depend on the step.
  bool is_share() const { return kind_ == Kind::kFraction || text_.ends_with('%'); }

  /// The budget in bytes. `static_bytes`: bytes alive between steps (weights, gradients, optimizer
  /// states).
  int64_t bytes(const MemoryPlanner& planner, int64_t static_bytes) const;

  /// The budget in bytes, without a planner. `plain_peak_bytes`: peak of a step that keeps
  /// everything. nullopt for fraction and device budgets, which need a planner.
  std::optional<int64_t> bytes_of_plain(int64_t plain_peak_bytes) const;

 private:
  enum class Kind : uint8_t { kText, kFraction, kDevice };

  std::string text_;
  Kind kind_ = Kind::kText;
  double fraction_ = 0;
  int64_t device_bytes_ = 0;
};

}  // namespace remat
