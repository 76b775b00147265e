// SPDX-License-Identifier: BSD-3-Clause

// Observers of the ops of a thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>

#include <remat/engine/export.h>

namespace remat {

class OpCall;
class OpInfo;
class Scope;

/// The part of a scope that observes its ops and those of the scopes inside it. For the scope's
/// thread only.
class REMAT_API OpObserver {
 public:
  OpObserver() = default;
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  virtual ~OpObserver() = default;

  /// An op is about to run; its arguments may be replaced. `logged` is true if forward and replay
  /// both call the op, so that they can be compared. It is false inside inner replays, and where
  /// the op allocates memory without values.
  virtual void before_op(OpCall& call, bool logged) = 0;

  /// The op has run; not called if it threw.
  virtual void after_op(OpCall& call) = 0;

  /// True if an op that only views `viewed`, a tensor with a layout, need not be shown. See
  /// Note [Views that nobody needs to see].
  virtual bool skips_view(const at::Tensor& /*viewed*/) const { return false; }

  /// Like before_op() and after_op(), for a part: an op that the handler of a tensor subclass calls
  /// while an observed op runs. adopt_part() follows for the tensors that the part has made.
  virtual void before_part(const OpCall& /*call*/) {}
  virtual void after_part(const OpCall& /*call*/) {}
  /// An op (or a part) that has begun ends with an exception; its arguments may be gone. Must not
  /// throw.
  virtual void op_threw(const OpCall& /*call*/) {}

  /// Called when a tensor with another version counter has been made on the memory of `tensor`. See
  /// Note [Data hooks].
  virtual void after_data(const at::Tensor& /*tensor*/) {}

  /// Called before `tensor` gets another tensor's memory (set_data()).
  virtual void before_set_data(const at::Tensor& /*tensor*/) {}

  /// Counts `tensor`, which was made by code whose ops were not observed, as made inside.
  virtual void adopt(const at::Tensor& /*tensor*/) {}

  /// Like adopt(), for a tensor that an op has made that may run inside another op.
  virtual void adopt_part(const at::Tensor& tensor) { adopt(tensor); }

  /// Throws if a replay would repeat a write to `storage`: see all_check_handler_write().
  virtual void check_handler_write(const OpInfo& /*info*/, const std::string& /*op*/,
                                   const c10::Storage& /*storage*/) const {}

  /// Returns the tensor that an op gets in place of `tensor`: Note [Shadows].
  virtual at::Tensor stand_in(const at::Tensor& tensor) { return tensor; }
  virtual torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) { return edge; }

  /// Called when user code calls is_recomputing(). From then on the function may call other ops in
  /// a replay than in the forward.
  virtual void phase_was_asked() {}

  /// Call the observers of this thread, the outermost first. See Note [Who sees an op].
  static void all_before_op(OpCall& call, bool logged);
  static void all_after_op(OpCall& call);
  /// True if no observer of this thread needs to see an op that only views `viewed`.
  static bool all_skip_view(const at::Tensor& viewed);
  static void all_before_part(const OpCall& call);
  static void all_after_part(const OpCall& call);
  static void all_op_threw(const OpCall& call);
  static void all_after_data(const at::Tensor& tensor);
  static void all_before_set_data(const at::Tensor& tensor);
  static void all_adopt(const at::Tensor& tensor);
  static void all_adopt_part(const at::Tensor& tensor);

  /// Call it when the handler of op `info`, run with `modes` dispatch modes active, has written
  /// `storage` by calling `op`. Throws NotImplementedError if a replay of one of this thread's
  /// scopes would repeat the write. See Note [Writes of handlers].
  static void all_check_handler_write(const OpInfo& info, const std::string& op,
                                      const c10::Storage& storage, int64_t modes);

  /// Returns the tensor that an op of this thread would get in place of `tensor`, or the edge at
  /// which a backward pass starts or ends in place of `edge`.
  static at::Tensor current_stand_in(const at::Tensor& tensor);
  static torch::autograd::Edge current_stand_in(const torch::autograd::Edge& edge);

  /// Returns the tensor that `scope` sees in an op that gets `tensor`: a stand-in if an outer
  /// replay replaces it.
  static at::Tensor as_seen(const Scope& scope, const at::Tensor& tensor);
};

}  // namespace remat
