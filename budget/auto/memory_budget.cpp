// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/memory_budget.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <remat/policy/budget_text.h>

namespace remat {
namespace {

constexpr std::string_view kFractionPrefix = "fraction:";
constexpr std::string_view kDevicePrefix = "device:";

[[noreturn]] void refuse(const std::string& where, const std::string& text) {
  TORCH_CHECK_VALUE(
      false, where,
      "memory_budget: expected bytes with a unit (8GB, 2.5GiB, 300MB), up to 100% of ",
      "the peak without remat (60%), fraction:0 to fraction:1, or device:BYTES, got ", "\"", text,
      "\". Give one of these.");
  std::abort();
}

/// Reads bytes, or a percentage of `whole`. Returns bytes; nullopt if they are not positive.
std::optional<int64_t> amount_of(std::string_view text, int64_t whole) {
  const std::optional<int64_t> bytes = detail::bytes_of(text, whole);
  return bytes && *bytes > 0 ? bytes : std::nullopt;
}

}  // namespace

MemoryBudget::MemoryBudget(std::string text, const std::string& where) : text_(std::move(text)) {
  const std::string_view view = text_;
  if (view.starts_with(kFractionPrefix)) {
    kind_ = Kind::kFraction;
    const auto fraction = detail::fraction_of(view.substr(kFractionPrefix.size()));
    if (!fraction) refuse(where, text_);
    fraction_ = *fraction;
  } else if (view.starts_with(kDevicePrefix)) {
    kind_ = Kind::kDevice;
    const auto bytes = amount_of(view.substr(kDevicePrefix.size()), 0);
    if (!bytes || view.ends_with('%')) refuse(where, text_);
    device_bytes_ = *bytes;
  } else {
    constexpr int64_t kWhole = int64_t{1} << 40;
    const auto bytes = amount_of(view, kWhole);
    if (!bytes || (view.ends_with('%') && *bytes > kWhole)) refuse(where, text_);
  }
}

int64_t MemoryBudget::bytes(const MemoryPlanner& planner, int64_t static_bytes) const {
  if (kind_ == Kind::kText) return planner.budget_bytes(text_);
  if (kind_ == Kind::kDevice) return std::max<int64_t>(0, device_bytes_ - static_bytes);
  const int64_t least = planner.frontier().front().peak_bytes;
  const int64_t most = std::max(least, planner.budget_bytes("100%"));
  return least + static_cast<int64_t>(fraction_ * static_cast<double>(most - least));
}

std::optional<int64_t> MemoryBudget::bytes_of_plain(int64_t plain_peak_bytes) const {
  return kind_ == Kind::kText ? detail::bytes_of(text_, plain_peak_bytes) : std::nullopt;
}

}  // namespace remat
