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

/// Adds a slot for a tensor that autograd saves, or keeps the tensor for the user: by the hooks and
/// the store of the options, or in the scopes around the region.
class ForwardSlots {
 public:
  ForwardSlots(ForwardState& state, OutsideWatch& outside);
  ForwardSlots(const ForwardSlots&) = delete;
  ForwardSlots& operator=(const ForwardSlots&) = delete;

  /// Adds a slot for `tensor`, which autograd saves.
  Slot& add(const at::Tensor& tensor);

  /// Keeps a value that crosses a cut.
  void keep_cut_value(CallProduct& value, const at::Tensor& tensor, Policy policy);

  /// Runs `keep`, which keeps `tensor`, such that `pair` gets it or, without a pair, the scopes
  /// around the region.
  void keep_through(const UserPair& pair, const SavedTensorInfo& info, const at::Tensor& tensor,
                    Keep reach, c10::function_ref<void()> keep);

  /// The store if there is one and `may_store`; else the hooks of the options.
  UserPair pair_of_options(bool may_store);
  /// True if pair_of_options() has returned `pair`, and `pair` has hooks.
  bool is_of_options(const UserPair& pair) const;

  /// True if user hooks, not an outer region, get what keep_through() keeps.
  bool gives_to_user(Keep reach, const UserPair& pair) const;

  /// The memory of `tensor`, which others may have or copy. nullopt if remat itself saves `tensor`.
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
  std::shared_ptr<const SavedTensorsHooks> offload_hooks_;  // The store as hooks, once needed.
};

}  // namespace remat
