// SPDX-License-Identifier: BSD-3-Clause

// Slots of a region's forward, and tensors kept for its user.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>

#include <remat/engine/call_log.h>
#include <remat/engine/forward_memory.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/policy/policy.h>

#include <remat/engine/user_pair.h>
#include "forward_state.h"
#include "outside_watch.h"

namespace remat {

/// Adds a slot for a tensor that autograd saves, or has the tensor kept: by the hooks or the store
/// of the options, or by the scopes around the region.
class ForwardSlots {
 public:
  ForwardSlots(ForwardState& state, OutsideWatch& outside);
  ForwardSlots(const ForwardSlots&) = delete;
  ForwardSlots& operator=(const ForwardSlots&) = delete;

  /// Adds a slot for `tensor`, which autograd saves.
  Slot& add(const at::Tensor& tensor);

  void keep_cut_value(CallProduct& value, const at::Tensor& tensor, Policy policy);

  /// Runs `keep`, which saves `tensor`, so that `pair` gets the tensor. Without a pair, the scopes
  /// around the region get it.
  void keep_through(const UserPair& pair, const SavedTensorInfo& info, const at::Tensor& tensor,
                    Keep reach, c10::function_ref<void()> keep);

  /// Returns the pair of the store if there is a store and `may_store`; else the options' hooks.
  UserPair pair_of_options(bool may_store);
  /// True if `pair` has the hooks or the store of the options.
  bool is_of_options(const UserPair& pair) const;

  /// True if user hooks, and not an outer region, get what keep_through() keeps.
  bool gives_to_user(Keep reach, const UserPair& pair) const;

  /// The memory of `tensor`, see Note [Memory that others hold]. nullopt if remat itself saves
  /// `tensor`, if the tensor has no layout, and for a parameter under hooks.
  std::optional<ForwardMemory> memory_for_others(const at::Tensor& tensor) const;

  /// Throws NotImplementedError if a slot's tensor was written or exchanged through `.data`.
  void check_saved() const;

 private:
  void note_memory(const at::Tensor& tensor, const at::Tensor& original, bool is_copy, Slot& slot);
  void write_down(const at::Tensor& tensor, const at::Tensor& original, bool was_read, Slot& slot);

  ForwardState& state_;
  Region& region_;
  OutsideWatch& outside_;
  const bool has_hooks_around_;  // User hooks are open around the region.
  std::shared_ptr<const SavedTensorsHooks>
      offload_hooks_;  // The store as hooks; null until needed.
};

}  // namespace remat
