// SPDX-License-Identifier: BSD-3-Clause

// Differences of recordings as text for people.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes the first of replay_differences() and their number, or that there are none. Returns true
/// if anything differs.
REMAT_API bool print_replay_differences(const Recording& recording, std::ostream& out);

/// Writes first_difference(), or that there is none. Returns true if anything differs.
REMAT_API bool print_difference(const Recording& a, const Recording& b, std::ostream& out);

}  // namespace remat
