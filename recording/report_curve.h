// SPDX-License-Identifier: BSD-3-Clause

// Which moments of a long recording a chart shows.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/recording/memory_blocks.h>

namespace remat::detail {

/// Places in `alive`, rising, `most` of them and some more at most: the first and the last,
/// what was alive at each of `marks`, and where least and most was alive in stretches of time and
/// in runs of events; the peak is the most of its stretch.
std::vector<size_t> shown_moments(const std::vector<AliveByKind>& alive,
                                  const std::vector<TimeNs>& marks, size_t most);

/// The last place in `alive` at that time or before; kNone if there is none.
size_t last_until(const std::vector<AliveByKind>& alive, TimeNs time_ns);

}  // namespace remat::detail
