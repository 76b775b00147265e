// SPDX-License-Identifier: BSD-3-Clause

// SAVE calls of collectives, which may go on after the op has returned.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>

#include "call_products.h"
#include "forward_state.h"
#include "pending_writes.h"
#include "saved_call.h"

namespace remat {

/// Keeps what the host may read of a collective without an op, and knows which may still write.
class CallCollectives {
 public:
  CallCollectives(ForwardState& state, CallProducts& products, PendingWrites& pending)
      : state_(state), products_(products), pending_(pending) {}
  CallCollectives(const CallCollectives&) = delete;
  CallCollectives& operator=(const CallCollectives&) = delete;

  /// An op of a SAVE call is about to run: a collective, a send or a receive.
  void before_op(const OpCall& call);
  /// It writes `tensor`. Throws NotImplementedError if an op of the region has saved that.
  void note_received(const OpInfo& op, const at::Tensor& tensor, Origin origin) const;
  /// `call`, of a collective, has returned `results`.
  void end_call(const SavedCall& call, const CallResults& results);

  /// An op outside of SAVE calls is about to read what is inside of `wrapper`, a tensor of a Python
  /// class; null: a slot or the user needs it. Sees to results of functional collectives.
  void read_inside(const at::Tensor& wrapper, const OpInfo* reader);

  /// The function has returned: keeps what has been waited for in it.
  void finish();

 private:
  void note_functional(const SavedCall& call, c10::ArrayRef<at::Tensor> results);
  void keep_for_host(const at::Tensor& tensor);

  ForwardState& state_;
  CallProducts& products_;
  PendingWrites& pending_;
  struct Unread {
    at::Tensor tensor;
    size_t slot;  // the next one then
    c10::IValue work;
  };
  std::vector<Unread> unread_;  // of async collectives, for the host
  bool is_async_ = false;       // the collective that runs
};

}  // namespace remat
