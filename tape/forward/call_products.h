// SPDX-License-Identifier: BSD-3-Clause

// What SAVE calls of a forward return and write, who reads it, and what of it is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <any>
#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <remat/tape/call_log.h>
#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>

#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "pending_writes.h"
#include "saved_call.h"
#include "user_pair.h"

namespace remat {

/// Note [What a SAVE call keeps]: of the tensors that autograd saves in it, those that are made by
/// the call, by another SAVE call or outside of the region are kept, as without remat. Those that
/// code of the region made which a replay runs again are not: a replay gets them from the call's
/// arguments (CallRecord::refills). Its results are kept when an op outside of SAVE calls reads
/// their data, and let go again at the end of the region if no slot comes after that op, because no
/// replay gets there.
class CallProducts {
 public:
  /// `running`: the SAVE call that runs; `op`: its op.
  CallProducts(ForwardState& state, OutsideWatch& outside, ForwardSlots& slots,
               PendingWrites& pending, const SavedCall& running, const SavedOp& op)
      : state_(state),
        region_(*state.region),
        outside_(outside),
        slots_(slots),
        pending_(pending),
        running_(running),
        op_(op) {}
  CallProducts(const CallProducts&) = delete;
  CallProducts& operator=(const CallProducts&) = delete;

  /// A named call has begun: the one after those before it.
  void begin_call() { ends_.emplace_back(); }
  /// A RECOMPUTE call has begun, or ended.
  void count_recomputed(int change) { recomputed_ += change; }

  /// The SAVE call that runs ends: what is kept of its results from here on is kept with the hooks
  /// and the context of now.
  void end_call();
  /// The hooks of the call that `number` is of are not asked again.
  void forget_hooks(size_t number) { ends_[region_.calls().product(number).call()].pair = {}; }

  /// Result `position` of the SAVE call that runs. Throws if a replay could put nothing there.
  CallOutput output_of(const at::Tensor& tensor, size_t position);
  /// What it has written.
  void add_write(const SavedCall::Written& written);

  /// The product whose value the tensor has: made by a call, or written outside by one.
  std::optional<size_t> product_in(const at::Tensor& tensor) const;

  /// An op outside of SAVE calls is about to use a tensor of this origin as argument `argument`.
  void before_use(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// Something that nobody sees is about to read `tensor`, or may.
  void need(const at::Tensor& tensor);
  /// `reader` is about to read it; null: something that nobody sees.
  void read(size_t number, const at::Tensor& tensor, const OpInfo* reader);
  /// `tensor` has the value of that product, which is about to be written.
  void keep_copy(CallProduct& product, const at::Tensor& tensor);
  /// True if a SAVE call of a collective has made or written it.
  bool is_of_collective(size_t number) const;

  /// Who gets a tensor that autograd saves in a call, if not a pair that was opened inside it.
  UserPair pair_for_saved(const CallRecord& record, const at::Tensor& tensor,
                          c10::function_ref<bool()> is_opened_in_call) const;

 private:
  struct CallEnd {
    UserPair pair;  // of those opened in the region
    std::any context;
  };

  void check_result(const at::Tensor& tensor, size_t position) const;
  bool is_made_here(Origin origin) const;
  size_t product_of(const at::Tensor& tensor);
  void read_outside(const at::Tensor& tensor, Origin origin, const OpInfo* reader);
  KeepReason reason_for(const OpInfo* reader) const;
  void report_implicit(const CallProduct& product, const std::string& reader) const;
  void keep(CallProduct& product, const at::Tensor& tensor, KeepReason reason);
  void keep_through_hooks(CallProduct& product, const at::Tensor& tensor,
                          c10::function_ref<void()> keep);
  bool may_store(const CallRecord& record, const at::Tensor& tensor) const;
  bool is_stored_argument(const at::Tensor& tensor) const;
  std::string where(const NamedCall& call) const;

  ForwardState& state_;
  Region& region_;
  OutsideWatch& outside_;
  ForwardSlots& slots_;
  PendingWrites& pending_;
  const SavedCall& running_;
  const SavedOp& op_;                            // of it
  std::vector<CallEnd> ends_;                    // per call
  int recomputed_ = 0;                           // RECOMPUTE calls that run
  std::unordered_set<size_t> outside_in_graph_;  // outside storages that a call made part of it
  std::unordered_map<size_t, size_t> outside_products_;  // by outside storage, until it is read
  std::unordered_map<size_t, size_t> base_products_;     // what a written one was before
};

}  // namespace remat
