// SPDX-License-Identifier: BSD-3-Clause

// What is seen of a replay.
#include "replay_scope.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <utility>
#include <vector>

#include <remat/tape/autocast_cache.h>

#include "graph_of_replay.h"
#include "storage_bytes.h"
#include "unseen.h"

namespace remat {
namespace {

uint64_t next_replay_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

// Note [The graph of a replay]: it is there for backwards inside the region's function, which the
// replay runs too. If there are none it holds no values: the function may keep a tensor of it (a
// list of router logits), and what backward needs is in the slots. The regions that it made replay
// nothing any more once it has ended: their functions may hold such a tensor, and so themselves.
class ReplayScope::Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(ReplayScope& scope) : scope_(scope), region_(scope.region_.weak_from_this()) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    const at::Tensor value = tensor_data(tensor);
    if (scope_.region_.has_inner_backward()) value_ = value;
    scope_.progress_.receive(tensor, value);
  }
  at::Tensor call_unpack_hook() override {
    const std::shared_ptr<const Region> region = region_.lock();
    TORCH_CHECK(value_.defined(),
                graph_of_replay(region ? region->label() : "a region that is gone"));
    return value_;
  }

 private:
  ReplayScope& scope_;  // dead once the replay has ended; used while packing only
  std::weak_ptr<const Region> region_;
  at::Tensor value_;
};

ReplayScope::ReplayScope(const ReplayParts& parts)
    : Scope(Phase::kReplay, parts.region.intercept() ? Ops::kSeen : Ops::kAsAround),
      region_(parts.region),
      id_(next_replay_id()),
      ops_(parts.ops),
      progress_(region_, parts.body, parts.slots, ops_),
      backwards_(*this, region_, progress_, ops_, parts.hooks),
      calls_(progress_, region_, ops_, parts.state_hooks) {
  set_parts({.ops = this, .backwards = &backwards_, .nested_tapes = this});
  set_policy(region_.policy());
  hide_ops_up_to(region_.made_in_replay());
}

std::unique_ptr<torch::autograd::SavedVariableHooks> ReplayScope::make_hooks() {
  if (!progress_.is_watched()) return nullptr;
  return std::make_unique<Hook>(*this);
}

void ReplayScope::before_op(OpCall& call, bool logged) {
  if (!region_.intercept()) return;
  progress_.begin_op(call);
  const bool compared = logged && progress_.compares() && !is_cacheable_cast(call);
  progress_.or_fail([&] { ops_.before(call, compared, progress_.slot_count()); });
}

void ReplayScope::after_op(OpCall& call) {
  if (!region_.intercept()) return;
  ops_.after(call);
  progress_.end_op();
}

void ReplayScope::adopt(const at::Tensor& tensor) {
  if (region_.intercept()) ops_.adopt(tensor);
}

at::Tensor ReplayScope::stand_in(const at::Tensor& tensor) {
  return region_.intercept() ? ops_.stand_in(tensor) : tensor;
}

torch::autograd::Edge ReplayScope::stand_in(const torch::autograd::Edge& edge) {
  return region_.intercept() ? ops_.stand_in(edge) : edge;
}

bool ReplayScope::decide(bool wanted) {
  if (!progress_.is_watched()) return wanted;
  const std::vector<bool>& forward = region_.inner_tapes();
  const size_t number = inner_regions_++;
  return number < forward.size() ? forward[number] : wanted;
}

void ReplayScope::check_complete() const {
  progress_.check_no_error();
  if (progress_.stopped()) return;
  calls_.check_complete();
  progress_.check_all_slots();
}

}  // namespace remat
