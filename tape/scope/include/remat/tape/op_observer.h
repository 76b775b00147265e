// SPDX-License-Identifier: BSD-3-Clause

// Who sees the ops of a thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>

#include <remat/tape/export.h>

namespace remat {

class OpCall;
class OpInfo;
class Scope;

/// The part of a scope that sees its ops, and those of the scopes inside it. On the thread of the
/// scope only.
class REMAT_API OpObserver {
 public:
  OpObserver() = default;
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  virtual ~OpObserver() = default;

  /// An op is about to run; its arguments may be replaced. `logged`: forward and replay both call
  /// it, so that they can be compared: false inside inner replays, and where it makes memory
  /// without values.
  virtual void before_op(OpCall& call, bool logged) = 0;

  /// It has run; not called if it threw.
  virtual void after_op(OpCall& call) = 0;

  /// The same of an op that the handler of a tensor subclass calls, for the op that was shown. What
  /// it has made is adopted after that.
  virtual void before_part(const OpCall& /*call*/) {}
  virtual void after_part(const OpCall& /*call*/) {}
  /// An op, or a part of one, that has begun ends with an exception: its arguments may be gone.
  /// Throws nothing.
  virtual void op_threw(const OpCall& /*call*/) {}

  /// A tensor on the memory of `tensor` is there now that has versions of its own. See
  /// Note [Data hooks].
  virtual void after_data(const at::Tensor& /*tensor*/) {}

  /// `tensor` is about to get the memory of another.
  virtual void before_set_data(const at::Tensor& /*tensor*/) {}

  /// `tensor` was made by code whose ops are not seen.
  virtual void adopt(const at::Tensor& /*tensor*/) {}

  /// As adopt(), of what an op has made that may run inside another one.
  virtual void adopt_part(const at::Tensor& tensor) { adopt(tensor); }

  /// Throws if a replay would write `storage` again: all_check_handler_write().
  virtual void check_handler_write(const OpInfo& /*info*/, const std::string& /*op*/,
                                   const c10::Storage& /*storage*/) const {}

  /// What an op is given in place of `tensor`: Note [Shadows].
  virtual at::Tensor stand_in(const at::Tensor& tensor) { return tensor; }
  virtual torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) { return edge; }

  /// User code has asked is_recomputing(): from here on it may call other ops in a replay than in
  /// the forward.
  virtual void phase_was_asked() {}

  /// Tell the observers of this thread, the outermost first. See Note [Who sees an op].
  static void all_before_op(OpCall& call, bool logged);
  static void all_after_op(OpCall& call);
  static void all_before_part(const OpCall& call);
  static void all_after_part(const OpCall& call);
  static void all_op_threw(const OpCall& call);
  static void all_after_data(const at::Tensor& tensor);
  static void all_before_set_data(const at::Tensor& tensor);
  static void all_adopt(const at::Tensor& tensor);
  static void all_adopt_part(const at::Tensor& tensor);

  /// A handler of `info`, called by `modes` dispatch modes, has written `storage` by `op`. Throws
  /// NotImplementedError if a replay of one of the scopes of this thread would write it again. See
  /// Note [Writes of handlers].
  static void all_check_handler_write(const OpInfo& info, const std::string& op,
                                      const c10::Storage& storage, int64_t modes);

  /// What an op of this thread would be given in place of `tensor`; what a backward that starts
  /// or ends at `edge` is to start or end at.
  static at::Tensor current_stand_in(const at::Tensor& tensor);
  static torch::autograd::Edge current_stand_in(const torch::autograd::Edge& edge);

  /// What `scope` sees of `tensor` in ops: a replay around may have put another in its place.
  static at::Tensor as_seen(const Scope& scope, const at::Tensor& tensor);
};

}  // namespace remat
