// SPDX-License-Identifier: BSD-3-Clause

// One checkpointed region: its slots, and the replays that fill them for each backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/backward_passes.h>
#include <remat/tape/call_log.h>
#include <remat/tape/current_streams.h>
#include <remat/tape/export.h>
#include <remat/tape/forward_memory.h>
#include <remat/tape/op_log.h>
#include <remat/tape/op_sites.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/region_policy.h>
#include <remat/tape/replay_comparison.h>
#include <remat/tape/replayer.h>
#include <remat/tape/slot.h>
#include <remat/tape/tensor_meta.h>
#include <remat/tape/thread_state.h>

namespace remat {

/// The nodes of autograd's graph that a forward made, by their numbers on its thread.
struct NodeRange {
  uint64_t thread = 0;
  uint64_t begin = 0;
  uint64_t end = ~uint64_t{0};  ///< While it runs: none is the last.

  bool contains(const torch::autograd::Node& node) const;
};

/// The .grad that a tensor had before a backward inside a region's function put another in its
/// place.
struct GradBefore {
  const c10::TensorImpl* tensor;
  at::Tensor grad;
  SavedVersion version;
};

/// What a forward's replays repeat of the backwards inside its function.
struct InnerBackwards {
  bool any = false;                 ///< Then the graph of a replay has to serve them, too.
  std::vector<uint64_t> gradients;  ///< Hashes of what they returned, in order.
  std::vector<size_t> hooks;        ///< How many on gradients each passed, also one without result.
  std::vector<uint64_t> roots;      ///< Hashes of the tensors at which they began.
  std::vector<GradBefore> grads_before;  ///< See Note [The .grad of a replay].
};

/// A region as its forward left it. Owned by the hooks of its live slots and of what its SAVE calls
/// keep, and by nobody else once the forward has ended. Its function and inputs die with the last
/// live slot, the rest when the last saved tensor is freed.
///
/// add_slot(), ops(), outside() and calls() belong to the forward's thread until close(), and do
/// not change after it; everything else may be called from any thread. A large class: each member
/// is one thing that a forward leaves for its replays.
class REMAT_API Region : public std::enable_shared_from_this<Region> {
 public:
  struct Options {
    std::string name;
    Determinism determinism = Determinism::kMetadata;
    bool early_stop = true;
    bool intercept = true;
    bool preserve_rng = true;
    std::shared_ptr<const RegionPolicy> policy{};  ///< Null for none.
    OpSite op_site{};
    /// True for a region whose tape is cut. Its slots belong to the regions of the segments, which
    /// hold this region: what it keeps stays until the last segment is gone.
    bool is_cut = false;
    /// True for such a segment, and for a group of them: its replayer hears of each slot that dies.
    bool is_unit = false;
    /// False if a store gives back approximations, this region's or one's around it: bits are not
    /// compared then.
    bool is_exact = true;
  };

  /// From then on find_region() and its neighbours have it.
  static std::shared_ptr<Region> make(Options options);
  class OnlyForMake {
    friend Region;
    OnlyForMake() = default;
  };
  Region(Options options, OnlyForMake);
  ~Region();

  /// Sets what replays this region. Once, before the first slot.
  void set_replayer(std::shared_ptr<const Replayer> replayer) { replayer_ = std::move(replayer); }

  /// Another number for each region of the process, in the order in which they were made.
  uint64_t id() const { return id_; }

  /// The replay that this region was made in, 0 if in none.
  uint64_t made_in_replay() const { return made_in_replay_; }

  const std::string& name() const { return options_.name; }
  Determinism determinism() const { return options_.determinism; }
  bool is_exact() const { return options_.is_exact; }
  /// True if a replay may stop early. Not where a replay calls collectives: all ranks are to call
  /// the same ones, whatever is alive. Nor where the function has run ops on other streams than it
  /// began with: the waits at its end keep memory from being used again too soon.
  bool early_stop() const {
    return options_.early_stop && !marks_.communicates && !marks_.switches_streams;
  }

  /// The function has run an op on another stream or device than it began with.
  void mark_switches_streams() { marks_.switches_streams = true; }
  bool switches_streams() const { return marks_.switches_streams; }

  /// A replay is going to call a collective again.
  void mark_communicates() { marks_.communicates = true; }
  bool preserve_rng() const { return options_.preserve_rng; }
  const RegionPolicy* policy() const { return options_.policy.get(); }
  const std::shared_ptr<const RegionPolicy>& shared_policy() const { return options_.policy; }

  /// True if the region's ops are seen: the forward fills ops() and outside(), and replays are
  /// compared with them.
  bool intercept() const { return options_.intercept; }

  /// To be called when the function has returned and all slots are there. A region whose function
  /// threw stays open.
  void close();
  bool closed() const { return closed_; }

  /// The tensors that the function has returned. Before close().
  void set_results(c10::ArrayRef<at::Tensor> results);
  /// True if one of these results has this version counter.
  bool has_result(const c10::VariableVersion& versions) const;

  Slot& add_slot(const at::Tensor& tensor);
  /// Others may have, in backward, the memory of `slot`, which is the last one.
  void add_memory_of_others(const Slot& slot, ForwardMemory memory);
  const std::deque<Slot>& slots() const { return slots_; }
  Slot& slot(size_t index) { return slots_[index]; }

  /// How many slots wait for backward.
  size_t live_count() const { return live_count_; }

  /// One past the last slot that waits for backward.
  size_t live_end() const { return live_end(slots_.size()); }

  /// What replays the region; null once no slot is live.
  std::shared_ptr<const Replayer> replayer() const;

  /// Autocast casts weights for the region, or has cast them before and answers from its cache.
  void mark_casts_weights() { marks_.casts_weights = true; }
  bool casts_weights() const { return marks_.casts_weights || !intercept(); }

  /// An op of the region has drawn random numbers, though the generators may be back where they
  /// were.
  void mark_draws() { marks_.draws = true; }
  bool draws() const { return marks_.draws; }

  InnerBackwards& inner_backwards() { return inner_backwards_; }
  const InnerBackwards& inner_backwards() const { return inner_backwards_; }

  void set_nodes(const NodeRange& nodes) { nodes_ = nodes; }
  const NodeRange& nodes() const { return nodes_; }

  /// Which of the regions that began inside, in order, were recorded on tapes: Note [Nested tapes].
  void add_inner_tape(bool has_tape) { inner_tapes_.push_back(has_tape); }
  const std::vector<bool>& inner_tapes() const { return inner_tapes_; }

  /// The settings under which the function began, and begins again in a replay.
  const ComputeSettings& settings() const { return settings_; }

  /// The streams on which the function began: Note [Streams of a replay].
  const CurrentStreams& streams() const { return streams_; }

  OpLog& ops() { return ops_; }
  const OpLog& ops() const { return ops_; }

  /// Where the ops of ops() come from; null if nobody asked for it.
  OpSites* op_sites() { return op_sites_.get(); }

  /// To be called when no replay will call the function any more.
  void drop_op_log() {
    ops_.drop();
    op_sites_.reset();
  }
  const OpSites* op_sites() const { return op_sites_.get(); }

  OutsideLog& outside() { return outside_; }
  const OutsideLog& outside() const { return outside_; }
  CallLog& calls();
  const CallLog& calls() const;

  /// What is kept of each product of the SAVE calls, null for those of which nothing is.
  std::vector<CallProduct::Held> kept_products() const;
  /// The same for one product.
  CallProduct::Held kept_product(size_t number) const;

  /// True if anything of these is kept, so that replays can run.
  bool keeps_for_replays() const;
  /// No replay will run any more: gives up what is kept for them, to be destroyed by the caller.
  std::vector<CallProduct::Held> release_products() noexcept;

  /// Replays the region: values for the slots that are live. Throws what a replay throws.
  ReplayedSlots replay();

  /// Where `slot` lay, if others may have that memory in backward; else null.
  const ForwardMemory* memory_of_others(const Slot& slot) const;

  /// The value of a slot for the backward that runs on this thread; replays the region if that has
  /// not happened for it. Throws autograd's in-place error if the saved tensor was written since.
  at::Tensor load(const Slot& slot);

  /// The head of the region's backward: replays once per backward, if a slot is live.
  void replay_for_backward();

  /// The node that held `slot` has been freed: frees its values too.
  void release(Slot& slot) noexcept;

  /// The replay in which this region was made has ended: Note [The graph of a replay]. The region's
  /// function dies.
  void end_with_replay() noexcept;

  /// "region 'block3'" or "region without a name", for messages.
  std::string label() const;

 private:
  at::Tensor shared_value(const Slot& slot, at::Tensor value) const;
  void release_unneeded() noexcept;
  class RunningReplay;
  std::shared_ptr<const Replayer> running_replayer() const;
  size_t live_end(size_t end) const;
  std::string change_of(const Slot& slot) const;
  void check_version(const Slot& slot) const;
  void check_not_freed(const Slot& slot, const at::Tensor& value) const;

  const Options options_;
  const uint64_t id_;
  const uint64_t made_in_replay_;
  std::shared_ptr<const Replayer> replayer_;  // guarded by mutex_ once closed
  std::deque<Slot> slots_;
  std::vector<std::pair<size_t, ForwardMemory>> memory_of_others_;  // with the slot's index
  c10::SmallVector<c10::VariableVersion, 2> results_;  // their versions; guarded by mutex_
  const ComputeSettings settings_;
  const CurrentStreams streams_ = CurrentStreams::read();
  OpLog ops_;
  std::unique_ptr<OpSites> op_sites_;
  OutsideLog outside_;
  struct Marks {
    bool casts_weights = false;
    bool communicates = false;
    bool draws = false;
    bool switches_streams = false;
  };
  Marks marks_;
  InnerBackwards inner_backwards_;
  NodeRange nodes_;
  std::vector<bool> inner_tapes_;
  std::unique_ptr<CallLog> calls_;  // null without named calls
  std::atomic<bool> closed_{false};

  std::atomic<size_t> live_count_{0};  // of slots
  size_t live_end_ = 0;                // not below live_end(); guarded by mutex_
  size_t replays_ = 0;                 // that run; guarded by mutex_

  mutable std::mutex mutex_;
  BackwardPasses passes_;
};

/// The regions of the process that something still refers to, oldest first. Of those that are not
/// closed, only the ones open on this thread may be looked into.
REMAT_API std::vector<std::shared_ptr<const Region>> live_regions();

/// The ids of the regions that this thread has closed since it was asked last, but for some that
/// are gone; and the region of an id, null if it is gone.
REMAT_API std::vector<uint64_t> take_closed_here();
REMAT_API std::shared_ptr<const Region> find_region(uint64_t id);

/// The id of the youngest region, 0 if there was none. The regions with higher ones that were made
/// in the replay `replay_id` end with it.
REMAT_API uint64_t youngest_region();
REMAT_API void end_regions_of_replay(uint64_t replay_id, uint64_t after) noexcept;

}  // namespace remat
