// SPDX-License-Identifier: BSD-3-Clause

// Amounts of bytes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <remat/policy/export.h>

namespace remat::detail {

/// Bytes of "2.5GiB", "300 MB", "4096B", or of "60%" of `whole`; none for other text.
REMAT_API std::optional<int64_t> bytes_of(std::string_view text, int64_t whole);

/// "300 B", "34.90 MB": with the largest unit of a thousand to the n that makes it 1 or more.
REMAT_API std::string bytes_text(int64_t bytes);

/// "6.6 %" of 0.066 with one digit after the point.
REMAT_API std::string percent_text(double share, int digits);

}  // namespace remat::detail
