// SPDX-License-Identifier: BSD-3-Clause

// The replays of a region, one for each backward pass that unpacks its slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/replayer.h>
#include <remat/engine/slot.h>

namespace remat {

class Region;
struct KeptTensor;

/// Note [Passes]: replayed values belong to one backward pass, and are keyed by its graph task. If
/// the graph is not retained, each value is freed with the node that holds its slot. If the graph
/// is retained, each value is handed over when its node unpacks it, and a node that unpacks twice
/// causes another replay. Remaining values are freed when the graph task ends, by success or by
/// exception, because the engine then destroys the callbacks it was given, including the one that
/// holds PassEnd.
///
/// Note [The last replay]: values that SAVE calls have kept for replays (a result that bare code
/// reads) are freed once no further replay can come. A replay for a graph that is not retained is
/// the last, because backward frees each node of such a graph. Should that backward pass not reach
/// all of the region's nodes, or throw, the values for the remaining nodes stay, as in plain code.
///
/// Owned by the region. Usable from any thread.
class REMAT_API BackwardPasses {
 public:
  explicit BackwardPasses(Region& region) : region_(region) {}

  /// Returns the value of `slot` for the backward pass on this thread; replays the region if it was
  /// not replayed for this pass.
  at::Tensor load(const Slot& slot);
  /// Notes that the backward pass on this thread has got `value` for `kept`, from a store or from
  /// the hooks of the options. `is_hooked`: in plain code the user's saved-tensor hooks, which are
  /// not those of the options, would have got the tensor. See Note [Writes in a backward].
  void note_kept(const KeptTensor& kept, const at::Tensor& value, bool is_hooked);
  /// Replays the region for this thread's backward pass, unless that pass already has a replay.
  void replay();
  /// Call it when the node that held slot `index` has been freed.
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

  Region& region_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Pass>> passes_;  // Guarded by mutex_.
  std::optional<ReplayedSlots> last_;          // Set by the last replay; guarded by mutex_.
  // Number of entries in passes_ and last_. Lets release() skip the lock in the forward, and when a
  // graph is destroyed without a backward.
  std::atomic<size_t> count_{0};
};

}  // namespace remat
