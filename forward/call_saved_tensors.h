// SPDX-License-Identifier: BSD-3-Clause

// Tensors that autograd saves in a forward's SAVE calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/call_log.h>

#include <remat/engine/user_pair.h>
#include "call_products.h"
#include "expected_saves.h"
#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "saved_call.h"

namespace remat {

/// Turns a tensor saved in a SAVE call into a slot that is filled from the call's arguments, or
/// lets the scopes around the region keep the tensor: see Note [What a SAVE call keeps].
class CallSavedTensors {
 public:
  /// `running` is the running SAVE call. `before_slot` is called with a tensor that code outside
  /// SAVE calls saves where a SAVE call's tensor was expected.
  CallSavedTensors(ForwardState& state, ForwardSlots& slots, const CallProducts& products,
                   SavedCall& running, std::function<void(const at::Tensor&)> before_slot)
      : state_(state),
        slots_(slots),
        products_(products),
        running_(running),
        before_slot_(std::move(before_slot)) {}
  CallSavedTensors(const CallSavedTensors&) = delete;
  CallSavedTensors& operator=(const CallSavedTensors&) = delete;
  ~CallSavedTensors();

  /// A tensor that autograd will save under a name given by the user.
  struct Named {
    std::string name;
    at::Tensor tensor;
    size_t depth;  ///< Number of running calls when it was named.
  };

  /// Call it when a SAVE call begins.
  void begin_call() { place_ = ScopePlace::here(); }
  /// Call it when the running call ends or throws. Moves the tensors that the call holds to `dying`
  /// or, if autograd is expected to save some of them later, to the expected saves.
  void end_call(std::vector<at::Tensor>& dying) noexcept;
  /// Call before_op() before an op of the call runs, and after_op() when the op has run.
  void before_op() { drop_pending(); }
  void after_op() { pack_pending(); }
  /// Call it before an op outside SAVE calls runs. Gives up expected tensors, except for those of a
  /// custom function that may be returning, because such a function may return its input, of which
  /// autograd then makes a view by an op.
  void before_other() {
    if (!expected_.empty()) expected_.end(/*by_op=*/true);
  }
  /// Call it before a SAVE call begins: see ExpectedSaves::end().
  void end_expected() noexcept { expected_.end(); }
  /// Call it when the running call throws.
  void abandon_call() noexcept { expected_.abandon_call(); }

  /// Notes that right after the call autograd will save `tensors` in this order: see NamedCalls.
  void expect(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
              const SavingState& saving) {
    expected_.expect(names, tensors, saving);
  }
  /// Notes that autograd will save `tensors` in the call, in any order, with `depth` running calls.
  void name(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors, size_t depth);
  /// Call it when the innermost of `depth` calls, which is inside the SAVE call, has thrown.
  void forget_names(size_t depth) noexcept;

  /// True if autograd may save the next tensor for a SAVE call. If so, use make_hooks().
  bool takes_saved() const { return running_.record || !expected_.empty(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks();

  /// Call it before `tensor` gets other memory.
  void before_set_data(const at::Tensor& tensor);
  /// Throws NotImplementedError if a kept tensor got other memory while the graph still needs it.
  void check_exchanged() const;

 private:
  class Hook;

  void pack_pending();
  void drop_pending() noexcept;
  SavedCall* call_that_saves(const at::Tensor& tensor);
  bool add_refill(SavedCall& call, const at::Tensor& tensor);
  std::string next_name(SavedCall& call, const at::Tensor& tensor);
  bool is_from_outside(const at::Tensor& tensor) const {
    return running_.is_from_outside(tensor, state_.storages);
  }
  UserPair pair_for(const CallRecord& record, const at::Tensor& tensor) const;

  ForwardState& state_;
  ForwardSlots& slots_;
  const CallProducts& products_;
  SavedCall& running_;
  const std::function<void(const at::Tensor&)> before_slot_;
  ExpectedSaves expected_;
  std::vector<Named> named_;                  // Tensors of running_ with the user's names.
  ScopePlace place_;                          // The open scopes when running_ began.
  std::vector<Hook*> pending_;                // For the running op, in order: see pack_pending().
  std::vector<const KeptTensor*> exchanged_;  // Kept tensors that later got other memory.
};

}  // namespace remat
