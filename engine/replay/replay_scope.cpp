// SPDX-License-Identifier: BSD-3-Clause

// The scope of a replay, and its saved-tensor hook.
#include "replay_scope.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <vector>

#include <remat/engine/region_label.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

uint64_t next_replay_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

// Note [The graph of a replay]: the graph exists for backward passes inside the region's function,
// which the replay runs, too. If there are no such passes, the graph holds no values: backward
// takes values from the slots, and a function that keeps a tensor of the graph (a list of router
// logits) would keep the graph's values alive. Regions made in a replay can no longer replay once
// that replay has ended, because their functions may own such a tensor, and so themselves.
class ReplayScope::Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(ReplayScope& scope) : scope_(scope), region_(scope.region_.weak_from_this()) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    const at::Tensor value = tensor_data(tensor);
    if (scope_.region_.inner_backwards().any) value_ = value;
    scope_.progress_.receive(tensor, value);
  }
  at::Tensor call_unpack_hook() override {
    const std::shared_ptr<const Region> region = region_.lock();
    TORCH_CHECK(value_.defined(),
                graph_of_replay(region ? region->label() : "a region that is gone"));
    return value_;
  }

 private:
  ReplayScope& scope_;  // Dangling after the replay; used only in pack.
  std::weak_ptr<const Region> region_;
  at::Tensor value_;
};

ReplayScope::ReplayScope(const ReplayParts& parts)
    : Scope(Phase::kReplay, parts.region.intercept() ? Ops::kSeen : Ops::kAsAround),
      region_(parts.region),
      id_(next_replay_id()),
      comparison_(region_, parts.memory),
      progress_(region_, parts.body, parts.slots, comparison_),
      ops_(region_, progress_, comparison_, parts.memory, parts.products),
      backwards_(*this, region_, progress_, parts.memory, parts.hooks),
      calls_(region_, progress_, comparison_, parts.memory, parts.products, parts.state_hooks) {
  set_parts({.ops = &ops_, .backwards = &backwards_, .run = this});
  set_policy(region_.policy());
  hide_ops_up_to(region_.made_in_replay());
}

std::unique_ptr<torch::autograd::SavedVariableHooks> ReplayScope::make_hooks() {
  if (!progress_.is_watched()) return nullptr;
  return std::make_unique<Hook>(*this);
}

bool ReplayScope::decide_tape(bool wanted) {
  if (!progress_.is_watched()) return wanted;
  const std::vector<bool>& forward = region_.inner_tapes();
  const size_t number = inner_regions_++;
  return number < forward.size() ? forward[number] : wanted;
}

void ReplayScope::check_reached() const {
  progress_.check_no_error();
  if (progress_.stopped()) return;
  calls_.check_complete();
  progress_.check_all_slots();
}

void ReplayScope::check_complete() const {
  try {
    check_reached();
  } catch (const ReplayMismatch& mismatch) {
    const std::string lists = comparison_.op_lists();
    if (lists.empty()) throw;
    throw ReplayMismatch(c10::str(mismatch.what_without_backtrace(), "\n", lists));
  }
}

}  // namespace remat
