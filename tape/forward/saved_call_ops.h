// SPDX-License-Identifier: BSD-3-Clause

// The ops of the SAVE call of a forward that runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>
#include <remat/tape/storage_table.h>

#include "call_collectives.h"
#include "call_products.h"
#include "call_saved_tensors.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "pending_writes.h"
#include "saved_call.h"

namespace remat {

/// Knows what the call makes and what it writes, and keeps what a replay needs of the latter from
/// before.
class SavedCallOps {
 public:
  /// `running`: the SAVE call; `op`: its op, for all that look.
  SavedCallOps(ForwardState& state, OutsideWatch& outside, PendingWrites& pending,
               CallProducts& products, CallSavedTensors& saves, CallCollectives& collectives,
               SavedCall& running, SavedOp& op)
      : state_(state),
        outside_(outside),
        pending_(pending),
        products_(products),
        saves_(saves),
        collectives_(collectives),
        running_(running),
        op_(op) {}
  SavedCallOps(const SavedCallOps&) = delete;
  SavedCallOps& operator=(const SavedCallOps&) = delete;

  /// An op of the call is about to run; it has run.
  void before_op(const OpCall& call);
  void after_op(const OpCall& call);
  /// Code of the call that is not seen has made `tensor`.
  void adopt(const at::Tensor& tensor);

  /// A call inside of it, which an outer scope skips, writes `writes` and has `arguments`: its ops
  /// are not seen.
  void begin_skipped(c10::ArrayRef<at::Tensor> writes, c10::ArrayRef<at::Tensor> arguments);
  bool is_skipped() const { return skipped_.has_value(); }
  /// It has returned `results`, or thrown.
  void end_skipped(c10::ArrayRef<at::Tensor> results);
  void forget_skipped() noexcept;

  /// What the call has made is the region's from here on. Returns what kept addresses taken; see
  /// Note [What dies with a SAVE call].
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
  SavedOp& op_;
  /// What SAVE calls make: the one that runs, without storage too, and all of them, of what has
  /// lived on.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::vector<at::Tensor> made_opaque_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_earlier_;
  std::optional<std::vector<at::Tensor>> skipped_;  // the arguments of a call that is skipped
};

}  // namespace remat
