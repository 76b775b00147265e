// SPDX-License-Identifier: BSD-3-Clause

// Checking that policy rules for ops name existing ops.
#pragma once

#include <cstddef>

#include <remat/policy/policy_table.h>

namespace remat {

/// When the rules are checked. A library may register its ops piece by piece, so only LibTorch's
/// own namespace is known to be complete before a region begins.
enum class RulesAsked : bool { kWhenMade, kInRegion };

/// False if rule `i` of `table` names no registered op, but a library may yet register one. Throws
/// c10::ValueError, with similar names, if none can be. True for a pattern with a wildcard, which
/// may match nothing.
bool names_an_op(const PolicyTable& table, size_t i, RulesAsked when);

}  // namespace remat
