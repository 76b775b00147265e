// SPDX-License-Identifier: BSD-3-Clause

// Whether rules for ops name ops that there are.
#pragma once

#include <cstddef>

#include <remat/policy/policy_table.h>

namespace remat {

/// When the rules are looked at: a library may register its ops piece by piece, so that until a
/// region begins only LibTorch's own namespace is known whole.
enum class RulesAsked : bool { kWhenMade, kInRegion };

/// False if no op is registered that rule `i` of `table` names, and a library may yet register one.
/// Throws c10::ValueError, with names that are close, if none will be. True for a pattern with a
/// wildcard: such a one may match nothing.
bool names_an_op(const PolicyTable& table, size_t i, RulesAsked when);

}  // namespace remat
