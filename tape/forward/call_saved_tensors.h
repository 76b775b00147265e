// SPDX-License-Identifier: BSD-3-Clause

// What autograd saves in SAVE calls of a forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/call_log.h>

#include "call_products.h"
#include "expected_saves.h"
#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "saved_call.h"
#include "user_pair.h"

namespace remat {

/// Makes a slot of it that is filled from the call's arguments, or keeps it as the scopes around
/// the region want it: see Note [What a SAVE call keeps].
class CallSavedTensors {
 public:
  /// `running`: the SAVE call that runs; `op`: its op. `before_slot` is told of tensors that code
  /// outside of SAVE calls saves, where one of a call was expected.
  CallSavedTensors(ForwardState& state, ForwardSlots& slots, const CallProducts& products,
                   SavedCall& running, const SavedOp& op,
                   std::function<void(const at::Tensor&)> before_slot)
      : state_(state),
        slots_(slots),
        products_(products),
        running_(running),
        op_(op),
        before_slot_(std::move(before_slot)) {}
  CallSavedTensors(const CallSavedTensors&) = delete;
  CallSavedTensors& operator=(const CallSavedTensors&) = delete;
  ~CallSavedTensors();

  /// What autograd will save by a name of the user's.
  struct Named {
    std::string name;
    at::Tensor tensor;
    size_t depth;  ///< How many calls ran when it was named.
  };

  /// What a call that has ended, or thrown, leaves; see Note [What dies with a SAVE call].
  struct Ended {
    SavedCall::Held held{};
    std::vector<Named> named{};
  };

  /// A SAVE call begins.
  void begin_call() { place_ = ScopePlace::here(); }
  /// The call that runs ends. Autograd may go on to save what was expected.
  [[nodiscard]] Ended end_call() noexcept;
  /// An op of it is about to run; it has run.
  void before_op() { drop_pending(); }
  void after_op() { pack_pending(); }
  /// An op outside of SAVE calls is about to run: what was expected to be saved will not be, unless
  /// the op is part of how a custom function returns (one that returns its input makes a view).
  void before_other() {
    if (!expected_.empty()) expected_.end(/*by_op=*/true);
  }
  /// A SAVE call is about to begin: as ExpectedSaves::end().
  void end_expected() noexcept { expected_.end(); }
  /// The call that runs throws.
  void abandon_call() noexcept { expected_.abandon_call(); }

  /// Right after the call autograd will save these for it, in this order; see NamedCalls.
  void expect(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
              const SavingState& saving) {
    expected_.expect(names, tensors, saving);
  }
  /// In it, these, in any order; `depth`: how many calls run.
  void name(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors, size_t depth);
  /// The innermost of `depth` calls, which is inside of the SAVE call, has thrown.
  void forget_names(size_t depth) noexcept;

  /// True if what autograd saves next may be a call's; then hooks for it.
  bool takes_saved() const { return running_.record || !expected_.empty(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks();

  /// `tensor` is about to get other memory.
  void before_set_data(const at::Tensor& tensor);
  /// Throws NotImplementedError if something that is kept has got other memory.
  void check_exchanged() const;

 private:
  class Hook;

  void pack_pending();
  void drop_pending() noexcept;
  SavedCall* call_that_saves(const at::Tensor& tensor);
  bool add_refill(SavedCall& call, const at::Tensor& tensor);
  std::string next_name(SavedCall& call, const at::Tensor& tensor);
  bool is_from_outside(const at::Tensor& tensor) const {
    return op_.is_from_outside(tensor, state_.storages);
  }
  UserPair pair_for(const CallRecord& record, const at::Tensor& tensor) const;
  std::string where(const NamedCall& call) const;

  ForwardState& state_;
  ForwardSlots& slots_;
  const CallProducts& products_;
  SavedCall& running_;
  const SavedOp& op_;  // of it
  const std::function<void(const at::Tensor&)> before_slot_;
  ExpectedSaves expected_;
  std::vector<Named> named_;                  // in running_
  ScopePlace place_;                          // where that began
  std::vector<Hook*> pending_;                // of what its op saves, in order: see pack_pending()
  std::vector<const KeptTensor*> exchanged_;  // have got other memory since
};

}  // namespace remat
