// SPDX-License-Identifier: BSD-3-Clause

// The replays of a region, one for each backward that asks for its slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/slot.h>

namespace remat {

class Region;

/// Note [Passes]: replayed values belong to one run of backward, so they are keyed by its graph
/// task. A graph that is not kept frees each value with the node that held it; a kept graph hands
/// each value over when its node asks for it, and replays again should a node ask twice. What is
/// left goes when the graph task ends, by success or by exception: the engine then destroys the
/// callbacks it was given, PassEnd among them.
///
/// Note [The last replay]: what SAVE calls have left for replays (a result that bare code reads)
/// goes as soon as no replay will come: after one for a graph that is not kept, which frees each
/// node as it passes. Should that backward not pass all of the region's nodes, or throw, the values
/// for the others stay, as they would without a region.
///
/// Belongs to the region. From any thread.
class REMAT_API BackwardPasses {
 public:
  explicit BackwardPasses(Region& region) : region_(region) {}
  BackwardPasses(const BackwardPasses&) = delete;
  BackwardPasses& operator=(const BackwardPasses&) = delete;

  /// The value of `slot` for the backward that runs on this thread; replays the region if that has
  /// not happened for it.
  at::Tensor load(const Slot& slot);
  /// Replays for that backward, unless that has happened.
  void replay();
  /// The node that held slot `index` has been freed.
  void release(size_t index) noexcept;

 private:
  struct Pass;
  class PassEnd;

  std::shared_ptr<Pass> replayed(int graph_task, const Slot* wanted);
  std::shared_ptr<Pass> find_or_add(int graph_task);
  void run(Pass& pass);
  bool is_last(const ReplayedSlots& values) const;
  void wait_for(Pass& pass);
  void forget(const Pass* pass) noexcept;
  void check_not_replaying_here() const;
  void check_not_replaying(bool holds) const;
  void check_hooked(const Pass& pass) const;

  Region& region_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Pass>> passes_;  // guarded by mutex_
  std::unique_ptr<ReplayedSlots> last_;        // of the last replay; guarded by mutex_
  // Of passes_ and last_: lets release() skip the lock in the forward and in dropped graphs.
  std::atomic<size_t> count_{0};
};

}  // namespace remat
