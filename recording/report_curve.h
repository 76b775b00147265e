// SPDX-License-Identifier: BSD-3-Clause

// Chooses the moments of a long recording that a chart shows.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/recording/memory_blocks.h>

namespace remat::detail {

/// Ascending indices into `alive`, at most about `most` of them: the first and the last, those at
/// each of `marks`, and the minimum and maximum in stretches of time and in runs of events. The
/// peak is the maximum of its stretch.
std::vector<size_t> shown_moments(const std::vector<AliveByKind>& alive,
                                  const std::vector<TimeNs>& marks, size_t most);

/// The last index in `alive` at or before that time; kNone if there is none.
size_t last_until(const std::vector<AliveByKind>& alive, TimeNs time_ns);

}  // namespace remat::detail
