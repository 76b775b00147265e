// SPDX-License-Identifier: BSD-3-Clause

// How much memory a step may take, as people say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <remat/memory_plan/memory_planner.h>
#include <remat/tape/export.h>

namespace remat {

/// "8GB", "2.5 GiB": bytes above what is alive when the step begins. "60%": of the peak of a step
/// of which everything is kept. "fraction:0.5": as far between the least that a plan takes (0) and
/// that peak (1). "device:16GB": of all memory of the device, what weights, gradients and optimizer
/// leave. A plain value.
class REMAT_API MemoryBudget {
 public:
  /// @throws c10::ValueError for other text, with a message that begins with `where`.
  MemoryBudget(std::string text, const std::string& where);

  const std::string& text() const { return text_; }

  /// True if it is a share of what the step takes, not a number of bytes.
  bool is_share() const { return kind_ == Kind::kFraction || text_.ends_with('%'); }

  /// `static_bytes`: alive whatever the step does.
  int64_t bytes(const MemoryPlanner& planner, int64_t static_bytes) const;

  /// The same before there is a planner; none if that does not say it.
  std::optional<int64_t> bytes_of_plain(int64_t plain_peak_bytes) const;

 private:
  enum class Kind : uint8_t { kText, kFraction, kDevice };

  std::string text_;
  Kind kind_ = Kind::kText;
  double fraction_ = 0;
  int64_t device_bytes_ = 0;
};

}  // namespace remat
