// SPDX-License-Identifier: BSD-3-Clause

// What autograd saves in SAVE calls of a forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/call_log.h>

#include "call_products.h"
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
  /// `running`: the SAVE call that runs; `op`: its op.
  CallSavedTensors(ForwardState& state, ForwardSlots& slots, const CallProducts& products,
                   SavedCall& running, const SavedOp& op)
      : state_(state), slots_(slots), products_(products), running_(running), op_(op) {}
  CallSavedTensors(const CallSavedTensors&) = delete;
  CallSavedTensors& operator=(const CallSavedTensors&) = delete;
  ~CallSavedTensors();

  /// A SAVE call begins.
  void begin_call() { place_ = ScopePlace::here(); }
  /// It ends; autograd may go on to save what was expected.
  void end_call() noexcept;
  /// An op of it is about to run; it has run.
  void before_op() { drop_pending(); }
  void after_op() { pack_pending(); }
  /// An op outside of SAVE calls is about to run, or a SAVE call to begin: what was expected to be
  /// saved will not be.
  void end_expected();
  void forget_expected() {
    expected_.clear();
    expected_names_.clear();
  }

  /// Right after the call autograd will save these for it, in this order.
  void expect(std::vector<std::string> names, c10::ArrayRef<at::Tensor> tensors);
  /// In it, these, in any order.
  void name(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors);

  /// True if what autograd saves next may be a call's; then hooks for it.
  bool takes_saved() const { return running_.record || ended_.record; }
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
  const SavedOp& op_;                 // of it
  SavedCall ended_;                   // whose expected tensors are being saved
  std::vector<at::Tensor> expected_;  // what autograd will save for it, in order
  std::vector<std::string> expected_names_;
  std::deque<std::pair<std::string, at::Tensor>> named_;  // in running_
  ScopePlace place_;                                      // where that began
  std::vector<Hook*> pending_;                // of what its op saves, in order: see pack_pending()
  std::vector<const KeptTensor*> exchanged_;  // have got other memory since
};

}  // namespace remat
