// SPDX-License-Identifier: BSD-3-Clause

// Picking up what autograd saves in a replay, and stopping it.
#include "replay_scope.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <utility>

#include <remat/tape/autocast_cache.h>
#include <remat/tape/replay_mismatch.h>
#include <remat/tape/saved_tensors_hooks.h>

#include "graph_of_replay.h"
#include "graph_walk.h"
#include "host_values.h"
#include "root_views.h"
#include "saved_original.h"
#include "storage_bytes.h"
#include "tensor_hash.h"
#include "unseen.h"

namespace remat {
namespace {

uint64_t next_replay_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

bool writes_any_argument(const OpCall& call) {
  if (!call.info().writes()) return false;
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (call.writes_argument(i)) return true;
  }
  return false;
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
    scope_.receive(tensor, value);
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
      body_(parts.body),
      id_(next_replay_id()),
      values_(parts.slots),
      ops_(parts.ops),
      hooks_(parts.hooks),
      end_(ops_.slot_end()),
      graph_task_(torch::autograd::get_current_graph_task_id()),
      uncaught_exceptions_(std::uncaught_exceptions()),
      thread_(at::RecordFunction::currentThreadId()),
      first_node_(at::sequence_number::peek()),
      leaf_grads_(region_),
      calls_(*this, region_, ops_, parts.state_hooks) {
  set_policy(region_.policy());
  hide_ops_up_to(region_.made_in_replay());
}

std::unique_ptr<torch::autograd::SavedVariableHooks> ReplayScope::make_hooks() {
  if (calls_.unwatched()) return nullptr;
  return std::make_unique<Hook>(*this);
}

bool ReplayScope::is_own_code() const {
  return torch::autograd::get_current_graph_task_id() == graph_task_;
}

bool ReplayScope::compares() const {
  return region_.intercept() && !stopped_ && !comparison_ends_ && !calls_.unwatched() &&
         region_.determinism() != Determinism::kNone && is_own_code();
}

void ReplayScope::before_op(OpCall& call, bool logged) {
  if (!region_.intercept()) return;
  if (std::exchange(stops_before_op_, false)) stop();
  op_ = &call.info();
  op_writes_ = writes_any_argument(call);
  const bool compared = logged && compares() && !is_cacheable_cast(call);
  or_fail([&] { ops_.before(call, compared, count_); });
}

void ReplayScope::after_op(OpCall& call) {
  if (!region_.intercept()) return;
  ops_.after(call);
  op_ = nullptr;
  op_writes_ = false;
  if (stops_after_op_) stop();
}

void ReplayScope::adopt(const at::Tensor& tensor) {
  if (region_.intercept()) ops_.adopt(tensor);
}

at::Tensor ReplayScope::stand_in(const at::Tensor& tensor) {
  return region_.intercept() ? ops_.stand_in(tensor) : tensor;
}

bool ReplayScope::decide_tape(bool wanted) {
  if (calls_.unwatched()) return wanted;
  const std::vector<bool>& forward = region_.inner_tapes();
  const size_t number = inner_regions_++;
  return number < forward.size() ? forward[number] : wanted;
}

torch::autograd::Edge ReplayScope::stand_in(const torch::autograd::Edge& edge) {
  return region_.intercept() ? ops_.stand_in(edge) : edge;
}

// Tensors from outside that the forward has written stand where they stood before, as far as that
// is known. If not, their gradients would go through what the forward did, and what it does again.
void ReplayScope::before_backward(const EdgeList& roots) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !hooks_.changed_before(roots), "[replay] ", region_.label(), ", slot ", count_,
      ": expected a backward inside the function that passes no hook which the function has set or "
      "removed on an argument or a captured tensor, got one that does: it would run twice. Set "
      "such hooks outside of the region.");
  if (region_.intercept() && ops_.has_shadow_in_graph()) {
    visit_nodes(roots, [&](const torch::autograd::Node& node) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          !is_of_forward(node), "[replay] ", region_.label(), ", slot ", count_, ", node ",
          node.name(),
          ": expected a backward inside the function that stays in what runs again, got one that "
          "reaches the graph of the forward, through a tensor from outside that the region writes "
          "in place. Pass that tensor as an argument, or write to a clone.");
    });
  }
  if (const auto& forward = region_.inner_roots();
      compares_backward() && begun_backwards_ < forward.size() &&
      forward[begun_backwards_] != hash_of_views(roots)) {
    or_fail([&] { roots_mismatch(begun_backwards_); });
  }
  const std::vector<at::Tensor> captured = region_.outside().captured();
  leaf_grads_.set_aside_retained(captured);
  leaf_grads_.take_retained(roots, captured, [&](const auto& node) { return is_mine(node); });
  Scope::before_backward(roots);
}

bool ReplayScope::compares_backward() const {
  return region_.intercept() && !stopped_ && !comparison_ends_ && !calls_.unwatched() &&
         is_own_code();
}

// A hook that was not there in the forward is called by the replay, though its gradient is no part
// of what anybody has asked for.
void ReplayScope::before_hooks(size_t count) {
  if (compares_backward()) {
    const size_t number = begun_backwards_++;
    const auto& forward = region_.inner_hooks();
    if (number < forward.size() && forward[number] != count)
      or_fail([&] { hooks_mismatch(number, forward[number], count); });
  }
  Scope::before_hooks(count);
}

void ReplayScope::hooks_mismatch(size_t backward, size_t expected, size_t got) const {
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str("[replay] ", region_.label(), ", slot ", count_, ", backward ", backward,
               " inside the function: expected to pass ", expected,
               " hooks on gradients as in the forward, got ", got,
               ". One has been set or removed on a tensor from outside since. Set hooks before the "
               "region, and remove them after backward."));
}

void ReplayScope::roots_mismatch(size_t backward) const {
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          "[replay] ", region_.label(), ", slot ", count_, ", backward ", backward,
          " inside the function: expected to begin at the parts of tensors that it began at in "
          "the forward, got others: an index depends on state that has changed.",
          kMakeItDepend));
}

void ReplayScope::before_accumulate(const EdgeList& roots) {
  leaf_grads_.set_aside(roots);
}

void ReplayScope::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (!gradients.empty() && compares()) or_fail([&] { compare_gradients(gradients); });
  if (stopped_) stop();
}

// Hooks run again with a backward inside, and those too that were set after the forward.
void ReplayScope::compare_gradients(c10::ArrayRef<at::Tensor> gradients) {
  const size_t number = backwards_++;
  const auto& forward = region_.inner_gradients();
  if (number >= forward.size() || forward[number] == hash_of(gradients)) return;
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str("[replay] ", region_.label(), ", slot ", count_, ", backward ", number,
               " inside the function: expected the gradients that it gave in the forward, got "
               "others. A hook on the gradient of a tensor from outside has been set or removed "
               "since, or memory was written unseen. Set hooks before the region, and remove them "
               "after backward."));
}

bool ReplayScope::is_mine(const torch::autograd::Node& node) const {
  return node.thread_id() == thread_ && node.sequence_nr() >= first_node_;
}

bool ReplayScope::is_of_forward(const torch::autograd::Node& node) const {
  return !is_mine(node) && region_.nodes().contains(node);
}

void ReplayScope::check_complete() const {
  if (error_) std::rethrow_exception(error_);
  if (stopped_) return;
  calls_.check_complete();
  if (count_ >= end_) return;
  const Slot& slot = region_.slots()[count_];
  mismatch(
      slot.index, slot.meta.str(), "the end of the function",
      c10::str("The forward saved ", region_.slots().size(), " tensors, the replay ", count_, "."));
}

void ReplayScope::receive(const at::Tensor& tensor, const at::Tensor& value) {
  if (stops_before_op_) return;
  if (stopped_) return stop();  // the function caught the stop and went on
  // A backward inside the function replays what the open region has saved so far; its replay may
  // get further.
  if (!region_.closed() && count_ >= region_.slots().size()) return;
  check_position(tensor);
  or_fail([&] { check(tensor); });
  const size_t index = count_++;
  if (index < end_ && region_.slots()[index].live) values_.put(index, value);
  if (region_.early_stop() && region_.closed() && count_ >= end_ && is_saved_by_custom_function()) {
    stops_before_op_ = true;
  } else {
    stop_if_complete();
  }
}

// Note [What custom functions hold]: torch keeps what a custom function is to save in the
// function's context, until all of it is saved. A stop in the middle would leave it there: a result
// then holds its node, which holds the context, which holds the result, for ever. So the stop waits
// for the next op.
bool ReplayScope::is_saved_by_custom_function() const {
  return region_.intercept() && !op_ && !packs_region_input();
}

// Note [Saved before it is written]: an op may save an argument that its kernel fills after that
// (the noise of rrelu_with_noise), so the stop waits until the op has run. Where no ops are seen it
// waits for the next saved tensor, or the end of the function; not at the argument of a region
// inside, which no op saves.
//
// If no op of the forward is left, the function is let return: an exception costs more. Without
// early stop it is let return too; not if a backward inside it replays what it has saved so far.
void ReplayScope::stop_if_complete() {
  const bool runs_to_end = !region_.early_stop() && region_.closed();
  if (runs_to_end || count_ < end_) return;
  if (op_writes_) {
    stops_after_op_ = true;
    return;
  }
  if (!region_.intercept() && !packs_region_input()) {
    stopped_ = true;
    return;
  }
  if (compares() && region_.closed() && ops_.is_past_last_op()) {
    stopped_ = true;
  } else {
    stop();
  }
}

void ReplayScope::fill(size_t index, const at::Tensor& value) {
  const Slot& slot = region_.slots()[index];
  if (index != count_ || !slot.meta.matches_data(value))
    mismatch(count_, slot.meta.str(), TensorMeta(value).str(), "");
  if (slot.op && slot.layout != 0 && compares() && slot.layout != given_hash(value))
    mismatch(count_, slot.meta.str(), TensorMeta(value).str(), "It has other values.");
  ++count_;
  if (index < end_ && slot.live) values_.put(index, value);
}

// Note [Stopping inside a backward]: autograd's engine handles only std::exceptions; another one
// that leaves a node would leave the engine's queues and depth counts as they were in the middle
// of the task. If a backward inside the function saves the last tensor, the stop waits until it
// has ended.
void ReplayScope::stop() {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire); sink && !stopped_)
    sink->replay_stops(trace_scope());
  stopped_ = true;
  const bool in_inner_backward = torch::autograd::get_current_graph_task_id() != graph_task_;
  const bool in_destructor = std::uncaught_exceptions() != uncaught_exceptions_;
  if (!in_inner_backward && !in_destructor) body_.stop();
}

// Another tensor of the same shape would not be noticed: a custom function saves what has come to
// require grad, past all ops. Where this throws while a named call is left by an exception, which
// keeps its arguments then, that exception counts.
void ReplayScope::check_position(const at::Tensor& tensor) const {
  if (!compares() || region_.ops().broken_off() || count_ >= region_.slots().size()) return;
  const Slot& slot = region_.slots()[count_];
  if (slot.log_position == ops_.position()) return;
  mismatch(slot.index, slot.meta.str(), TensorMeta(tensor).str(),
           "It was saved between other ops.");
}

void ReplayScope::check(const at::Tensor& tensor) const {
  if (count_ >= region_.slots().size()) {
    mismatch(count_, "the end of the function", TensorMeta(tensor).str(),
             "The replay saved more tensors.");
  }
  const Slot& slot = region_.slots()[count_];
  // The very tensor that the forward saved, written since: other slots that are made from it
  // would be wrong in silence.
  TORCH_CHECK(!slot.version.changed_in(tensor), modified_in_place(slot.meta, slot.version),
              "[replay] ", region_.label(), ", slot ", slot.index,
              ": expected the tensor from outside the region as the forward saved it. Do not "
              "write it in the region or between forward and backward, or use a clone.");
  // A module's argument may come through a view: CommDebugMode sets hooks that make one.
  const bool may_be_elsewhere = region_.determinism() == Determinism::kNone ||
                                (slot.meta.requires_grad() && is_parameter(tensor));
  const bool fits = may_be_elsewhere ? slot.meta.matches_data(tensor) : slot.meta.matches(tensor);
  const bool same_part = op_ || slot.op || !compares() || is_same_part(slot, tensor);
  if (fits && same_part && is_saved_by_same_op(slot)) return;
  const TensorMeta got(tensor);
  if (fits && !same_part) {
    mismatch(slot.index, slot.meta.str(), got.str(),
             "It is another tensor, another part of one, in another order, or with other values.");
  }
  if (fits) mismatch(slot.index, slot.meta.str(), got.str(), "Another op has saved it.");
  const std::string place =
      slot.meta.matches_data(tensor)
          ? c10::str("It had ", slot.meta.place_str(), "; now ", got.place_str(), ".")
          : std::string();
  mismatch(slot.index, slot.meta.str(), got.str(), place);
}

/// Of what a custom function saves. What an op saves it has read or made, and its words are
/// compared.
bool ReplayScope::is_same_part(const Slot& slot, const at::Tensor& tensor) const {
  const bool is_of_user = has_layout(tensor) && !keeps_part();
  const bool is_told = slot.layout != 0 || ReplayOps::is_known(slot.origin);
  if (!is_of_user || !is_told) return true;
  const at::Tensor& original = saved_original(tensor);
  const uint16_t values = ops_.is_given(original) ? given_hash(original) : 0;
  return slot.layout == (layout_hash(tensor, ops_.moved(original)) ^ values) &&
         ops_.has_origin(original, slot.origin);
}

/// Where ops are not compared, tensors of one shape must not take each other's places.
bool ReplayScope::is_saved_by_same_op(const Slot& slot) const {
  return !region_.intercept() || compares() || slot.op == op_;
}

void ReplayScope::mismatch(size_t index, const std::string& expected, const std::string& got,
                           const std::string& detail) const {
  throw ReplayMismatch(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str("[replay] ", region_.label(), ", slot ", index, ": expected ", expected,
               " as in the forward, got ", got, ". ", detail, detail.empty() ? "" : " ",
               "The function did something else when it ran again: state that it reads has "
               "changed (a training or requires_grad flag, a cache, a counter, a random number "
               "not from a generator of LibTorch). Make it depend on its arguments, or keep that "
               "state with a StateHook (recompute_state_hooks in Python)."));
}

}  // namespace remat
