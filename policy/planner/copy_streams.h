// SPDX-License-Identifier: BSD-3-Clause

// The two copy streams of OFFLOAD beside the compute stream, in simulated time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "block.h"

namespace remat::detail {

/// Note [OFFLOAD]
/// When a region has run forward, compute waits until the copies out of the region before are done;
/// then its own are queued, and each tensor is freed when its copy is done. When the backward of
/// the region that follows begins, its tensors are fetched: what has not left yet stays instead.
/// Its backward waits for the last of them. One stream each way, first in, first out. Bytes are
/// counted to the disadvantage of the plan: a tensor leaves with the op after the end of its copy,
/// and comes with the op during which its copy begins.
class CopyStreams {
 public:
  using Mark = std::function<void(size_t region, int tensor, bool there)>;

  CopyStreams(double ticks_per_byte, Mark mark)
      : ticks_per_byte_(ticks_per_byte), mark_(std::move(mark)) {}

  /// Queues copies out; returns when compute may go on.
  Ticks send(size_t region, const std::vector<int>& tensors, const std::vector<int64_t>& bytes,
             Ticks now);
  void fetch(size_t region, Ticks now);
  /// When the region's tensors are all there.
  Ticks ready(size_t region, Ticks now) const;
  /// Marks what has left by `begin` and what comes before `end`.
  void settle(Ticks begin, Ticks end);

 private:
  struct Copy {
    size_t region = 0;
    int tensor = 0;
    int64_t bytes = 0;
    Ticks begin = 0;
    Ticks end = 0;
    bool marked = false;
  };

  Ticks duration(int64_t bytes) const;

  double ticks_per_byte_;
  Mark mark_;
  std::vector<Copy> out_;   // Queued or running, first in first
  std::vector<Copy> away_;  // In host memory
  std::vector<Copy> in_;
  Ticks in_free_ = 0;
};

}  // namespace remat::detail
