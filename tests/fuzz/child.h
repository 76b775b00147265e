// SPDX-License-Identifier: BSD-3-Clause

// Checks random programs in a child process, so that one that crashes or hangs fails like any
// other.
#pragma once

#include <cstdint>
#include <functional>

#include "fuzz/run.h"

namespace remat::fuzz {

using Check = std::function<Verdict(const Program&)>;

/// Calls `take(seed, verdict)` for `count` programs, from seed `first` on.
void check_in_children(uint64_t first, uint64_t count, const Check& check,
                       const std::function<void(uint64_t, const Verdict&)>& take);

Verdict check_in_child(const Program& program, const Check& check);

/// Returns what `make` returns in a child process. A fork cannot use CUDA once its parent has used
/// it.
std::string text_of_child(const std::function<std::string()>& make);

}  // namespace remat::fuzz
