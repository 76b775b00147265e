// SPDX-License-Identifier: BSD-3-Clause

// Observing which outside memory a region's forward reads and writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/tensor_meta.h>

#include "forward_state.h"

namespace remat {

/// True while a backward inside the region adds to a leaf's .grad. No old .grad is needed then,
/// because a replay gives the leaf another .grad (LeafGrads).
bool accumulates_grad();

/// Knows where a forward's tensors come from, notes in the region's OutsideLog what ops read and
/// write, keeps old values for replays, and refuses writes that replays could not repeat.
class OutsideWatch {
 public:
  explicit OutsideWatch(ForwardState& state) : state_(state), region_(*state.region) {}
  OutsideWatch(const OutsideWatch&) = delete;
  OutsideWatch& operator=(const OutsideWatch&) = delete;

  /// Returns the tensor's origin. A tensor that is met for the first time is from outside.
  Origin origin_of(const at::Tensor& tensor);

  /// Call it before an op runs. Forgets the last op, which may have thrown.
  void begin_op() {
    if (C10_UNLIKELY(!writes_whole_.empty())) writes_whole_.clear();
    writes_ = views_memory_ = views_wrapper_ = false;
  }
  /// Call it if the op has `tensor`, which is from outside, as argument `argument`.
  void see(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// True if see() has nothing to do for an op that only views `tensor`, which is from outside.
  bool knows(const at::Tensor& tensor, Origin origin) const {
    const OutsideStorage& outside = std::as_const(region_).outside()[origin.number()];
    return outside.is_first_tensor(tensor) && !outside.is_received() && !writes_any_;
  }
  /// Call it if the op has `tensor`, a tensor subclass of any origin, as argument `argument`.
  void see_wrapper(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// Call it when all arguments of the op have been seen.
  void before_writes(const OpCall& call) {
    if (writes_) note_writes(call);
  }
  /// From now on, memory that the op has overwritten without reading counts as made by the region.
  /// If the op has not ended, this holds only for memory that it has written so far.
  void cover_written(bool op_has_ended) {
    if (C10_UNLIKELY(!writes_whole_.empty())) cover_whole_writes(op_has_ended);
  }
  /// Call it when the op has returned `tensor`. Returns true if the result is from outside.
  bool see_result(const at::Tensor& tensor) {
    return C10_UNLIKELY(views_memory_ || views_wrapper_) && see_view(tensor);
  }

  /// Notes that code which a replay runs again reads `tensor`, which lies on memory of `outside`.
  void read(const at::Tensor& tensor, OutsideStorage& outside);
  /// Notes that a replay fills a slot from `tensor`, whether or not an op has read the tensor.
  void read_for_slot(const at::Tensor& tensor);
  bool is_read(const at::Tensor& tensor) const;
  /// Notes `tensor`, of this origin, as captured if it requires grad and the region has not made
  /// it.
  void note_captured(const at::Tensor& tensor, Origin origin);
  /// Keeps all of the tensor's storage, because a SAVE call is about to write it or has written it.
  void keep_before_write(const at::Tensor& tensor, Origin origin);

  /// Throw NotImplementedError. check_writable(): if the op may not write `tensor`.
  /// refuse_unshard(): always, because the op gathers weights inside the region.
  void check_writable(const OpInfo& info, const at::Tensor& tensor, Origin origin) const;
  [[noreturn]] void refuse_unshard(const OpInfo& info) const;
  void check_sizes() const;

  /// Call it before `tensor`, which may be a cast of a leaf, is used: Note [Stale casts].
  void check_cast(const at::Tensor& tensor, Origin origin) {
    if (C10_UNLIKELY(writes_any_)) check_known_cast(tensor, origin);
  }
  void check_no_stale_cast() const;

 private:
  void read_wrapper(const at::Tensor& wrapper);
  Origin origin_of_wrapper(const at::Tensor& wrapper);
  void note_writes(const OpCall& call);
  void cover_whole_writes(bool op_has_ended);
  void begin_write(const at::Tensor& tensor, OutsideStorage& outside);
  void keep_part(const at::Tensor& tensor, OutsideStorage& outside, const TensorLayout& part);
  bool see_view(const at::Tensor& view);
  void check_known_cast(const at::Tensor& tensor, Origin origin);
  void refuse_stale_cast(const at::Tensor& leaf);
  void check_plain(const OpInfo& info, const at::Tensor& tensor) const;
  void check_unshared(const OpInfo& info, const at::Tensor& tensor) const;

  ForwardState& state_;
  Region& region_;
  std::optional<TensorMeta> stale_cast_;           // Describes the leaf of a stale cast.
  std::unordered_set<const void*> wrapper_views_;  // Views of outside wrappers, by memory.
  bool writes_any_ = false;                        // The region has written outside memory.
  // For the running op:
  bool writes_ = false;         // Writes memory from outside.
  bool views_memory_ = false;   // Makes a view of outside memory.
  bool views_wrapper_ = false;  // Makes a view of an outside wrapper.
  struct WholeWrite {
    size_t number;  // Number of the outside storage.
    at::Tensor tensor;
    SavedVersion before;
  };
  std::vector<WholeWrite> writes_whole_;  // Whole-tensor writes, for cover_written().
};

}  // namespace remat
