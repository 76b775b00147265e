// SPDX-License-Identifier: BSD-3-Clause

// Budgets as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <remat/policy/export.h>

namespace remat::detail {

/// Bytes of "2.5GiB", "300 MB", "4096B", or "60%" of `whole`; nullopt for other text.
REMAT_API std::optional<int64_t> bytes_of(std::string_view text, int64_t whole);

/// A number from 0 to 1; nullopt for other text.
REMAT_API std::optional<double> fraction_of(std::string_view text);

/// Text such as "300 B" or "34.90 MB", in the largest decimal unit with a value of at least 1.
REMAT_API std::string bytes_text(int64_t bytes);

/// Text of a share as a percentage: "6.6 %" for 0.066 and one digit.
REMAT_API std::string percent_text(double share, int digits);

}  // namespace remat::detail
