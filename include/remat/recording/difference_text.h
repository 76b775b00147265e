// SPDX-License-Identifier: BSD-3-Clause

// What differs, for people.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes the first of replay_differences(), and how many there are; or that there are none.
/// Returns whether anything differs.
REMAT_API bool print_replay_differences(const Recording& recording, std::ostream& out);

/// The same of first_difference().
REMAT_API bool print_difference(const Recording& a, const Recording& b, std::ostream& out);

}  // namespace remat
