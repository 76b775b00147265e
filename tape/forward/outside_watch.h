// SPDX-License-Identifier: BSD-3-Clause

// What a region's forward reads and writes of memory from outside.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <unordered_set>
#include <vector>

#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/tensor_meta.h>

#include "forward_state.h"

namespace remat {

/// True while a backward inside the region adds to the .grad of a leaf. A replay gives the leaf
/// another one for that time (LeafGrads), so it needs no old value.
bool accumulates_grad();

/// Knows where the tensors of a forward come from, notes in the region's OutsideLog what is read
/// and written, keeps what replays need of the latter, and refuses what they could not do again.
class OutsideWatch {
 public:
  explicit OutsideWatch(ForwardState& state) : state_(state), region_(*state.region) {}
  OutsideWatch(const OutsideWatch&) = delete;
  OutsideWatch& operator=(const OutsideWatch&) = delete;

  /// Of what it meets for the first time: from outside.
  Origin origin_of(const at::Tensor& tensor);

  /// An op is about to run, after one that may have thrown.
  void begin_op() {
    if (C10_UNLIKELY(!writes_whole_.empty())) writes_whole_.clear();
    writes_ = views_memory_ = views_wrapper_ = false;
  }
  /// It has `tensor`, from outside, as argument `argument`.
  void see(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// The same of a tensor of a Python class, from anywhere.
  void see_wrapper(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// All its arguments have been seen.
  void before_writes(const OpCall& call) {
    if (writes_) note_writes(call);
  }
  /// What it writes without reading is made by the region from now on; of one that has not ended,
  /// what it has written by now.
  void cover_written(bool op_has_ended) {
    if (C10_UNLIKELY(!writes_whole_.empty())) cover_whole_writes(op_has_ended);
  }
  /// It has returned `tensor`. True if that is from outside, too.
  bool see_result(const at::Tensor& tensor) {
    return C10_UNLIKELY(views_memory_ || views_wrapper_) && see_view(tensor);
  }

  /// `tensor`, with memory of `outside`, is read by what a replay runs again.
  void read(const at::Tensor& tensor, OutsideStorage& outside);
  /// A slot is filled from it in a replay, whether an op has read it or not.
  void read_for_slot(const at::Tensor& tensor);
  bool is_read(const at::Tensor& tensor) const;
  /// The region uses this tensor, of that origin.
  void note_captured(const at::Tensor& tensor, Origin origin);
  /// A SAVE call writes it, or has: all of it is kept.
  void keep_before_write(const at::Tensor& tensor, Origin origin);

  /// Throw NotImplementedError: `info` may not write `tensor`; nobody may gather weights here.
  void check_writable(const OpInfo& info, const at::Tensor& tensor, Origin origin) const;
  [[noreturn]] void refuse_unshard(const OpInfo& info) const;
  /// `storage`, of that size from outside, has another one now.
  void check_sizes() const;

  /// A leaf of that origin, or a cast of one, is about to be used: Note [Stale casts].
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
  std::optional<TensorMeta> stale_cast_;           // its leaf
  std::unordered_set<const void*> wrapper_views_;  // views of wrappers from outside, by memory
  bool writes_any_ = false;                        // the region, so far
  // The op that runs:
  bool writes_ = false;         // memory from outside
  bool views_memory_ = false;   // makes a view of it
  bool views_wrapper_ = false;  // the same of a wrapper
  struct WholeWrite {
    size_t number;  // of the storage from outside
    at::Tensor tensor;
    SavedVersion before;
  };
  std::vector<WholeWrite> writes_whole_;  // if it does not throw
};

}  // namespace remat
