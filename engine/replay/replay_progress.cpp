// SPDX-License-Identifier: BSD-3-Clause

// Collecting what autograd saves in a replay, and stopping it.
#include "replay_progress.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include <remat/engine/op_writer.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_layout.h>
#include <remat/placeholder/op_facts.h>

namespace remat {
namespace {

/// An op whose arguments have at most this many elements runs, which takes no longer than to throw
/// the stop: see Note [The last op].
constexpr int64_t kMostElementsToRun = 8192;

}  // namespace

ReplayProgress::ReplayProgress(const Region& region, const RegionBody& body, ReplayedSlots& slots,
                               const ReplayComparison& comparison)
    : region_(region),
      body_(body),
      values_(slots),
      comparison_(comparison),
      slot_end_(region.live_end()),
      begin_{.graph_task = torch::autograd::get_current_graph_task_id(),
             .uncaught_exceptions = std::uncaught_exceptions()} {}

bool ReplayProgress::is_own_code() const {
  return torch::autograd::get_current_graph_task_id() == begin_.graph_task;
}

void ReplayProgress::note_written(const OpCall& call) {
  op_.written.clear();
  for (const OpTensor& entry : call.tensors()) {
    if (call.writes_argument(entry.argument)) op_.written.push_back(entry.memory);
  }
}

bool ReplayProgress::is_written(const at::Tensor& tensor) const {
  return std::find(op_.written.begin(), op_.written.end(), memory_of(tensor)) != op_.written.end();
}

void ReplayProgress::check_all_slots() const {
  if (count_ >= slot_end_) return;
  const Slot& slot = region_.slots()[count_];
  mismatch(
      slot.index, slot.meta.str(), "the end of the function",
      c10::str("The forward saved ", region_.slots().size(), " tensors, the replay ", count_, "."));
}

void ReplayProgress::receive(const at::Tensor& tensor, const at::Tensor& value) {
  if (op_.stops_before_next) return;
  if (stopped_) return stop();  // The function caught the stop and went on.
  // A backward inside the function replays what the open region has saved so far; the running code
  // may save more than that.
  if (!region_.closed() && count_ >= region_.slots().size()) return;
  check_position(tensor);
  or_fail([&] { check(tensor); });
  if (C10_UNLIKELY(op_.info && op_.info->writes()) && is_written(tensor)) op_.saves_written = true;
  const size_t index = count_++;
  if (index < slot_end_ && region_.slots()[index].live) values_[index] = value;
  if (region_.early_stop() && region_.closed() && count_ >= slot_end_ &&
      is_saved_by_custom_function()) {
    op_.stops_before_next = true;
  } else {
    stop_if_complete(&tensor);
  }
}

// Note [What custom functions hold]: PyTorch keeps the tensors that a custom function is to save in
// the function's context until all are saved. A stop before that would leave them there: a
// result would own its node, which owns the context, which owns the result. So the stop waits for
// the next op.
bool ReplayProgress::is_saved_by_custom_function() const {
  return region_.intercept() && !op_.info && !packs_region_input();
}

// Note [Saved before it is written]: an op may save an argument that its kernel fills afterwards
// (the noise of rrelu_with_noise), so the stop waits until that op has run. If ops are not
// intercepted, the stop waits for the next saved tensor or the end of the function, except at the
// argument of a nested region, which no op saves.
//
// If no op of the forward is left to run, the function may return, because an exception costs more.
// Without early stop the function may return, too, unless a backward inside it replays the tensors
// saved so far.
void ReplayProgress::stop_if_complete(const at::Tensor* saved) {
  const bool runs_to_end = !region_.early_stop() && region_.closed();
  if (runs_to_end || count_ < slot_end_) return;
  if (op_.saves_written) {
    op_.stops_after = true;
    return;
  }
  if (!region_.intercept() && !packs_region_input()) {
    stopped_ = true;
    return;
  }
  const bool may_return = compares() && region_.closed() && comparison_.is_past_last_op() &&
                          !(saved && is_before_last_kernel(*saved));
  if (may_return) {
    stopped_ = true;
  } else {
    stop();
  }
}

// Note [The last op]: autograd saves an op's arguments before its kernel runs, and its results
// afterwards. If the last tensor that backward needs is an argument of the forward's last op, the
// stop leaves out that kernel. The stop takes as long as an op on some thousand numbers, so an op
// on fewer runs and the function returns. A library's op saves after its kernel, too late for that.
void ReplayProgress::note_last_op(const OpCall& call) {
  last_op_ = {};
  if (!region_.early_stop() || call.info().is_of_library()) return;
  int64_t element_count = 0;
  for (const OpTensor& entry : call.tensors()) {
    last_op_.arguments.push_back(entry.tensor->unsafeGetTensorImpl());
    element_count += has_layout(*entry.tensor) ? entry.tensor->numel() : kMostElementsToRun + 1;
  }
  if (element_count <= kMostElementsToRun) {
    last_op_ = {};
  } else {
    last_op_.makes_none = returns_only_written(call.info().op().schema());
  }
}

// True if `saved` is an argument, or the op may have saved a copy of one that it writes in place.
bool ReplayProgress::is_before_last_kernel(const at::Tensor& saved) const {
  const auto& arguments = last_op_.arguments;
  return last_op_.makes_none || std::find(arguments.begin(), arguments.end(),
                                          saved.unsafeGetTensorImpl()) != arguments.end();
}

void ReplayProgress::fill(size_t index, const at::Tensor& value) {
  const Slot& slot = region_.slots()[index];
  if (index != count_ || !slot.meta.matches_data(value))
    mismatch(count_, slot.meta.str(), TensorMeta(value).str(), "");
  if (slot.op && slot.layout != 0 && compares() && slot.layout != given_hash(value))
    mismatch(count_, slot.meta.str(), TensorMeta(value).str(), "It has other values.");
  ++count_;
  if (index < slot_end_ && slot.live) values_[index] = value;
}

// Note [Stopping inside a backward]: autograd's engine handles only exceptions derived from
// std::exception. Another exception that leaves a node would leave the engine's queues and depth
// counts in the middle of the task. If a backward inside the function saves the last tensor, the
// stop waits until that backward has ended.
void ReplayProgress::stop() {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire); sink && !stopped_)
    sink->replay_stops(trace_scope());
  stopped_ = true;
  const bool in_inner_backward = torch::autograd::get_current_graph_task_id() != begin_.graph_task;
  const bool in_destructor = std::uncaught_exceptions() != begin_.uncaught_exceptions;
  if (!in_inner_backward && !in_destructor) body_.stop();
}

// Compares positions in the log, because a custom function saves tensors without an op, and another
// tensor of the same shape could go unnoticed. A named call that ends with an exception saves its
// arguments then. If this check throws at that moment, the call's exception wins.
void ReplayProgress::check_position(const at::Tensor& tensor) const {
  if (!compares() || region_.ops().broken_off() || count_ >= region_.slots().size()) return;
  const Slot& slot = region_.slots()[count_];
  if (slot.log_position == comparison_.position()) return;
  mismatch(slot.index, slot.meta.str(), TensorMeta(tensor).str(),
           "It was saved between other ops.");
}

void ReplayProgress::check(const at::Tensor& tensor) const {
  if (count_ >= region_.slots().size()) {
    mismatch(count_, "the end of the function", TensorMeta(tensor).str(),
             "The replay saved more tensors.");
  }
  const Slot& slot = region_.slots()[count_];
  // If the very tensor that the forward saved has been written since, other slots computed from it
  // would be silently wrong.
  TORCH_CHECK(!slot.version.changed_in(tensor), modified_in_place(slot.meta, slot.version),
              "[replay] ", region_.label(), ", slot ", slot.index,
              ": expected the tensor from outside the region as the forward saved it. Do not "
              "write it in the region or between forward and backward, or use a clone.");
  // A parameter may have another position in the graph, because CommDebugMode sets hooks that pass
  // a module's arguments through a view.
  const bool may_be_elsewhere = region_.determinism() == Determinism::kNone ||
                                (slot.meta.requires_grad() && is_parameter(tensor));
  const bool fits = may_be_elsewhere ? slot.meta.matches_data(tensor) : slot.meta.matches(tensor);
  const bool same_part =
      op_.info || slot.op || !compares() || comparison_.is_same_part(slot, tensor);
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

/// Compares the op that saves, if ops are not compared anyway, because shapes may agree by chance.
bool ReplayProgress::is_saved_by_same_op(const Slot& slot) const {
  return !region_.intercept() || compares() || slot.op == op_.info;
}

void ReplayProgress::mismatch(size_t index, const std::string& expected, const std::string& got,
                              const std::string& detail) const {
  throw ReplayMismatch(
      c10::str("[replay] ", region_.label(), ", slot ", index, ": expected ", expected,
               " as in the forward, got ", got, ". ", detail, detail.empty() ? "" : " ",
               "The function did something else when it ran again: state that it reads has "
               "changed (a training or requires_grad flag, a cache, a counter, a random number "
               "not from a generator of LibTorch). Make it depend on its arguments, or keep that "
               "state with a StateHook (recompute_state_hooks in Python)."));
}

}  // namespace remat
