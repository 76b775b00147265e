// SPDX-License-Identifier: BSD-3-Clause

// One checkpointed region: its slots, and the replays that fill them for each backward pass.
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

#include <remat/engine/backward_passes.h>
#include <remat/engine/call_log.h>
#include <remat/engine/current_streams.h>
#include <remat/engine/determinism.h>
#include <remat/engine/export.h>
#include <remat/engine/forward_memory.h>
#include <remat/engine/op_log.h>
#include <remat/engine/op_sites.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region_policy.h>
#include <remat/engine/replayer.h>
#include <remat/engine/tensor_meta.h>
#include <remat/engine/thread_state.h>

namespace remat {

/// The autograd nodes that a forward made, by their sequence numbers on its thread.
struct NodeRange {
  uint64_t thread = 0;
  uint64_t begin = 0;
  uint64_t end = ~uint64_t{0};  ///< The maximum while the forward runs.

  bool contains(const torch::autograd::Node& node) const;
};

/// The .grad of a tensor before a backward inside a region's function replaced it.
struct GradBefore {
  const c10::TensorImpl* tensor;
  at::Tensor grad;
  SavedVersion version;
};

/// Facts about backward passes inside a region's function, which its replays repeat.
struct InnerBackwards {
  bool any = false;                      ///< If true, replays build a graph for such passes.
  std::vector<uint64_t> gradients;       ///< Hashes of the returned gradients, in order.
  std::vector<size_t> hooks;             ///< Number of gradient hooks that each pass ran.
  std::vector<uint64_t> roots;           ///< Hashes of the tensors at which the passes began.
  std::vector<GradBefore> grads_before;  ///< See Note [The .grad of a replay].
};

/// A region as its forward left it. Owned by the hooks of its live slots and of what its SAVE calls
/// keep, and by nobody else once the forward has ended. Its function and inputs die with the last
/// live slot, the rest when the last saved tensor is freed.
///
/// add_slot(), ops(), outside() and calls() belong to the forward's thread until close(), and do
/// not change afterwards; everything else may be called from any thread. The class is large because
/// each member is one thing that a forward leaves for its replays.
class REMAT_API Region : public std::enable_shared_from_this<Region> {
 public:
  struct Options {
    std::string name;
    Determinism determinism = Determinism::kMetadata;
    bool early_stop = true;
    bool intercept = true;
    bool preserve_rng = true;
    std::shared_ptr<const RegionPolicy> policy{};  ///< Null if there is none.
    OpSite op_site{};
    /// True for a region whose tape is cut. Its slots belong to the regions of the segments, which
    /// own this region: what this region keeps stays until the last segment is gone.
    bool is_cut = false;
    /// True for a segment or group of a cut tape, whose replayer gets slot_released().
    bool is_unit = false;
    /// False if the store of this region, or of a region around it, returns approximations. Then
    /// bits are not compared.
    bool is_exact = true;
  };

  /// Makes a region that find_region() and live_regions() return from now on.
  static std::shared_ptr<Region> make(Options options);
  ~Region();

  /// Sets the replayer. Call it once, before the first slot.
  void set_replayer(std::shared_ptr<const Replayer> replayer) { replayer_ = std::move(replayer); }

  /// A number unique in the process, in order of creation.
  uint64_t id() const { return id_; }

  /// Id of the replay that this region was made in; 0 if it was made in no replay.
  uint64_t made_in_replay() const { return made_in_replay_; }

  const std::string& name() const { return options_.name; }
  Determinism determinism() const { return options_.determinism; }
  bool is_exact() const { return options_.is_exact; }
  /// True if a replay may stop early. False if a replay calls collectives, because all ranks must
  /// call the same collectives, whichever slots are live. Also false if the function has run ops on
  /// other streams than it began with, because the function's last waits, which a stop would
  /// leave out, keep memory from being reused too soon.
  bool early_stop() const {
    return options_.early_stop && !marks_.communicates && !marks_.switches_streams;
  }

  /// Notes that the function has run an op on another stream or device than it began with.
  void mark_switches_streams() { marks_.switches_streams = true; }
  bool switches_streams() const { return marks_.switches_streams; }

  /// Notes that replays will call a collective again.
  void mark_communicates() { marks_.communicates = true; }
  bool preserve_rng() const { return options_.preserve_rng; }
  const RegionPolicy* policy() const { return options_.policy.get(); }
  const std::shared_ptr<const RegionPolicy>& shared_policy() const { return options_.policy; }

  /// True if the region's ops are observed: the forward fills ops() and outside(), and replays are
  /// compared with them.
  bool intercept() const { return options_.intercept; }

  /// Call it when the function has returned and all slots exist. A region whose function threw
  /// stays open.
  void close();
  bool closed() const { return closed_; }

  /// Notes the tensors that the function has returned. Call it before close().
  void set_results(c10::ArrayRef<at::Tensor> results);
  /// True if one of the results has this version counter.
  bool has_result(const c10::VariableVersion& versions) const;

  Slot& add_slot(const at::Tensor& tensor);
  /// Notes that `slot`, the last one, is on memory that others may still have in backward.
  void add_memory_of_others(const Slot& slot, ForwardMemory memory);
  const std::deque<Slot>& slots() const { return slots_; }
  Slot& slot(size_t index) { return slots_[index]; }

  size_t live_count() const { return live_count_; }

  /// One past the last live slot.
  size_t live_end() const { return live_end(slots_.size()); }

  /// The replayer; null once no slot is live.
  std::shared_ptr<const Replayer> replayer() const;

  /// Notes that autocast casts weights in the region, or uses its cache of earlier casts.
  void mark_casts_weights() { marks_.casts_weights = true; }
  bool casts_weights() const { return marks_.casts_weights || !intercept(); }

  /// Notes that an op of the region has drawn random numbers, even if the generators were put back.
  void mark_draws() { marks_.draws = true; }
  bool draws() const { return marks_.draws; }

  InnerBackwards& inner_backwards() { return inner_backwards_; }
  const InnerBackwards& inner_backwards() const { return inner_backwards_; }

  void set_nodes(const NodeRange& nodes) { nodes_ = nodes; }
  const NodeRange& nodes() const { return nodes_; }

  /// Notes whether the next nested region was recorded on a tape: Note [Nested tapes].
  void add_inner_tape(bool has_tape) { inner_tapes_.push_back(has_tape); }
  const std::vector<bool>& inner_tapes() const { return inner_tapes_; }

  /// The settings under which the function begins, in the forward and in replays.
  const ComputeSettings& settings() const { return settings_; }

  /// The streams on which the function begins: Note [Streams of a replay].
  const CurrentStreams& streams() const { return streams_; }

  OpLog& ops() { return ops_; }
  const OpLog& ops() const { return ops_; }

  /// The sites of the ops in ops(); null if the options do not ask for sites.
  OpSites* op_sites() { return op_sites_.get(); }

  /// Call it when no replay will call the function any more.
  void drop_op_log() {
    ops_.drop();
    op_sites_.reset();
  }
  const OpSites* op_sites() const { return op_sites_.get(); }

  OutsideLog& outside() { return outside_; }
  const OutsideLog& outside() const { return outside_; }
  CallLog& calls();
  const CallLog& calls() const;

  /// The kept value of each product of the SAVE calls; null for products that are not kept.
  std::vector<CallProduct::Held> kept_products() const;
  /// Like kept_products(), for one product.
  CallProduct::Held kept_product(size_t number) const;

  /// True if kept products can be released once no replay will come.
  bool keeps_for_replays() const;
  /// Gives up the kept products, which the caller destroys. Call it once no replay will run.
  std::vector<CallProduct::Held> release_products() noexcept;

  /// Replays the region and returns values for its live slots. Throws what a replay throws.
  ReplayedSlots replay();

  /// The forward's memory of `slot`, if others may still have it in backward; else null.
  const ForwardMemory* memory_of_others(const Slot& slot) const;

  /// Returns the value of a slot for the backward pass on this thread; replays the region if it was
  /// not replayed for the pass. Throws autograd's in-place error if the saved tensor was written
  /// since it was saved.
  at::Tensor load(const Slot& slot);

  /// See BackwardPasses::note_kept().
  void note_kept(const KeptTensor& kept, const at::Tensor& value, bool is_hooked);

  /// Called when the region's backward begins. Replays once per pass, if a slot is live.
  void replay_for_backward();

  /// Call it when the node that held `slot` has been freed. Frees the slot's values, too.
  void release(Slot& slot) noexcept;

  /// Call it when the replay in which this region was made has ended: Note [The graph of a replay].
  /// Drops the region's function.
  void end_with_replay() noexcept;

  /// "region 'block3'" or "region without a name", for messages.
  std::string label() const;

 private:
  explicit Region(Options options);
  at::Tensor shared_value(const Slot& slot, at::Tensor value) const;
  void release_unneeded() noexcept;
  void begin_replay();
  void end_replay();
  std::shared_ptr<const Replayer> running_replayer() const;
  size_t live_end(size_t end) const;
  std::string change_of(const Slot& slot) const;
  void check_version(const Slot& slot) const;
  void check_not_freed(const Slot& slot, const at::Tensor& value) const;

  const Options options_;
  const uint64_t id_;
  const uint64_t made_in_replay_;
  std::shared_ptr<const Replayer> replayer_;  // Guarded by mutex_ once closed.
  std::deque<Slot> slots_;
  std::vector<std::pair<size_t, ForwardMemory>> memory_of_others_;  // By slot index.
  c10::SmallVector<c10::VariableVersion, 2> results_;  // Version counters; guarded by mutex_.
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
  std::unique_ptr<CallLog> calls_;  // Null without named calls.
  std::atomic<bool> closed_{false};

  std::atomic<size_t> live_count_{0};  // Number of live slots.
  size_t live_end_ = 0;                // Upper bound of live_end(); guarded by mutex_.
  size_t replays_ = 0;                 // Number of running replays; guarded by mutex_.

  mutable std::mutex mutex_;
  BackwardPasses passes_;
};

/// The process's live regions, oldest first. Read unclosed regions on the forward's thread only.
REMAT_API std::vector<std::shared_ptr<const Region>> live_regions();

/// take_closed_here() returns the ids of the regions that this thread has closed since the last
/// call, except some that no longer exist. find_region() returns the region with an id, or null if
/// it no longer exists.
REMAT_API std::vector<uint64_t> take_closed_here();
REMAT_API std::shared_ptr<const Region> find_region(uint64_t id);

/// youngest_region() returns the highest region id so far, 0 if there is none.
/// end_regions_of_replay() ends the regions with ids above `after` that were made in replay
/// `replay_id`.
REMAT_API uint64_t youngest_region();
REMAT_API void end_regions_of_replay(uint64_t replay_id, uint64_t after) noexcept;

}  // namespace remat
