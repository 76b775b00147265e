// SPDX-License-Identifier: BSD-3-Clause

// Results and writes of a forward's SAVE calls: who reads them, and what is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <any>
#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>

#include <remat/engine/user_pair.h>
#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "pending_writes.h"
#include "saved_call.h"

namespace remat {

/// Note [What a SAVE call keeps]: tensors that autograd saves in the call are kept, as without
/// remat, if the call, another SAVE call or code outside the region made them. Tensors made by code
/// that a replay runs again are not kept, because a replay gets them from the call's arguments
/// (CallRecord::refills). A result of the call is kept when an op outside SAVE calls reads its
/// data. At the end of the region, a kept result is released if no slot comes after the op that
/// read the result, because no replay gets to that op.
class CallProducts {
 public:
  /// `running` is the running SAVE call.
  CallProducts(ForwardState& state, OutsideWatch& outside, ForwardSlots& slots,
               PendingWrites& pending, const SavedCall& running)
      : state_(state),
        region_(*state.region),
        outside_(outside),
        slots_(slots),
        pending_(pending),
        running_(running) {}
  CallProducts(const CallProducts&) = delete;
  CallProducts& operator=(const CallProducts&) = delete;

  /// Call it when a named call has begun, for all call records in order.
  void begin_call() { ends_.emplace_back(); }
  /// Call it when a RECOMPUTE call has begun (+1) or ended (-1).
  void count_recomputed(int change) { recomputed_ += change; }

  /// Call it when the running SAVE call ends. Notes the hooks and context for results kept later.
  void end_call();
  /// Forgets the hooks that end_call() noted for the call that made product `number`.
  void forget_hooks(size_t number) { ends_[region_.calls().product(number).call()].first = {}; }

  /// Describes result `position` of the running SAVE call. Throws if replays cannot replace it.
  CallOutput output_of(const at::Tensor& tensor, size_t position);
  void add_write(const SavedCall::Written& written);

  /// Number of the product in the memory of `tensor`, which a SAVE call has made or, if it is from
  /// outside, written; nullopt if there is none.
  std::optional<size_t> product_in(const at::Tensor& tensor) const;

  /// Call it before an op outside SAVE calls uses `tensor`, of this origin, as argument `argument`.
  void before_use(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  /// Call it when code whose ops are not seen reads, or may read, `tensor`.
  void need(const at::Tensor& tensor);
  /// Call it before `reader` reads product `number`; null for code whose ops are not seen.
  void read(size_t number, const at::Tensor& tensor, const OpInfo* reader);
  /// Call it before a write to `tensor`, which has the value of `product`.
  void keep_copy(CallProduct& product, const at::Tensor& tensor);
  /// True if a SAVE call of a collective has made or written product `number`.
  bool is_of_collective(size_t number) const;

  /// Returns the pair that keeps `tensor`, which autograd saves in a call. `is_opened_in_call` is
  /// true if the call itself has opened a pair, because such a pair comes first.
  UserPair pair_for_saved(const CallRecord& record, const at::Tensor& tensor,
                          c10::function_ref<bool()> is_opened_in_call) const;

 private:
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

  ForwardState& state_;
  Region& region_;
  OutsideWatch& outside_;
  ForwardSlots& slots_;
  PendingWrites& pending_;
  const SavedCall& running_;
  // Per call: the pair that was open in the region at the call's end, and the pair's context.
  std::vector<std::pair<UserPair, std::any>> ends_;
  int recomputed_ = 0;                                   // Number of running RECOMPUTE calls.
  std::unordered_set<size_t> outside_in_graph_;          // Given a node by a SAVE call's write.
  std::unordered_map<size_t, size_t> outside_products_;  // Unread product of each outside storage.
  std::unordered_map<size_t, size_t> base_products_;     // A product's predecessor on its storage.
};

}  // namespace remat
