// SPDX-License-Identifier: BSD-3-Clause

// SAVE calls of collectives, which may still be running when the op has returned.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>

#include "call_products.h"
#include "forward_state.h"
#include "pending_writes.h"
#include "saved_call.h"

namespace remat {

/// Keeps results of collectives that the host may read without an op, and tracks which collectives
/// may still write.
class CallCollectives {
 public:
  CallCollectives(ForwardState& state, CallProducts& products, PendingWrites& pending)
      : state_(state), products_(products), pending_(pending) {}
  CallCollectives(const CallCollectives&) = delete;
  CallCollectives& operator=(const CallCollectives&) = delete;

  /// Call it before an op of a SAVE call, if the op is a collective, a send or a receive.
  void before_op(const OpCall& call);
  /// Call it before `op` writes `tensor`. Throws NotImplementedError if an op has saved `tensor`.
  void note_received(const OpInfo& op, const at::Tensor& tensor, Origin origin) const;
  /// Call it when `call`, a SAVE call of a collective, has returned `results`.
  void end_call(const SavedCall& call, const CallResults& results);

  /// Call it before `reader`, an op outside SAVE calls, reads the inner tensors of `wrapper`, which
  /// may be results of functional collectives. `reader`: null if a slot or the user needs them.
  void read_inside(const at::Tensor& wrapper, const OpInfo* reader);

  /// Call it when the function has returned. Keeps what the host may have read of the results of
  /// async collectives that have ended.
  void finish();

 private:
  void note_functional(const SavedCall& call, c10::ArrayRef<at::Tensor> results);
  void keep_for_host(const at::Tensor& tensor);

  ForwardState& state_;
  CallProducts& products_;
  PendingWrites& pending_;
  struct Unread {
    at::Tensor tensor;
    size_t slot;  // Number of the region's slots when the call ended.
    c10::IValue work;
  };
  std::vector<Unread> unread_;  // Results of async collectives that the host may read.
  bool is_async_ = false;       // The running collective is async.
};

}  // namespace remat
