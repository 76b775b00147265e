// SPDX-License-Identifier: BSD-3-Clause

// The ops of a forward's running SAVE call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>
#include <remat/engine/storage_table.h>

#include "call_collectives.h"
#include "call_products.h"
#include "call_saved_tensors.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "pending_writes.h"
#include "saved_call.h"

namespace remat {

/// Tracks what a SAVE call makes and writes, and keeps old values that a replay needs.
class SavedCallOps {
 public:
  /// `running` is the SAVE call.
  SavedCallOps(ForwardState& state, OutsideWatch& outside, PendingWrites& pending,
               CallProducts& products, CallSavedTensors& saves, CallCollectives& collectives,
               SavedCall& running)
      : state_(state),
        outside_(outside),
        pending_(pending),
        products_(products),
        saves_(saves),
        collectives_(collectives),
        running_(running) {}
  SavedCallOps(const SavedCallOps&) = delete;
  SavedCallOps& operator=(const SavedCallOps&) = delete;

  /// Call before_op() before an op of the call runs, and after_op() when the op has run.
  void before_op(const OpCall& call);
  void after_op(const OpCall& call);
  /// Notes that the call has made `tensor` by code whose ops are not seen.
  void adopt(const at::Tensor& tensor);

  /// Call it when an outer scope skips a call nested in this call. The nested call writes `writes`
  /// and has `arguments`; its ops are not observed.
  void begin_skipped(c10::ArrayRef<at::Tensor> writes, c10::ArrayRef<at::Tensor> arguments);
  bool is_skipped() const { return skipped_.has_value(); }
  /// end_skipped(): the nested call has returned `results`. forget_skipped(): the nested call has
  /// thrown.
  void end_skipped(c10::ArrayRef<at::Tensor> results);
  void forget_skipped() noexcept;

  /// Call it when the call ends. Forgets memory that the call has made and freed. Returns tensors
  /// that kept their addresses from being reused; see Note [What dies with a SAVE call].
  [[nodiscard]] std::vector<at::Tensor> end_call() noexcept;

 private:
  void note_write(const OpInfo* op, const at::Tensor& tensor, Origin origin, bool joins_graph);
  void check_findable(const OpInfo* op, const SavedCall::Written& written) const;
  void keep_before_write(const SavedCall::Written& written, bool joins_graph);
  void enter_made(const at::Tensor& tensor);

  ForwardState& state_;
  OutsideWatch& outside_;
  PendingWrites& pending_;
  CallProducts& products_;
  CallSavedTensors& saves_;
  CallCollectives& collectives_;
  SavedCall& running_;
  /// made_, and made_opaque_ (without storage): what the running call has made. made_earlier_: what
  /// earlier calls have made; may be dead.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::vector<at::Tensor> made_opaque_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_earlier_;
  std::optional<std::vector<at::Tensor>> skipped_;  // Arguments of the skipped call.
};

}  // namespace remat
