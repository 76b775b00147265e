// SPDX-License-Identifier: BSD-3-Clause

// The stack of named calls of a forward, and the handling of SAVE calls.
#include "forward_calls.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <remat/engine/graph_walk.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/op_writer.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/tape/tape_recorder.h>

namespace remat {
namespace {

/// True if `number` is in one of `ranges`, which are in ascending order.
bool is_in_range(const std::vector<std::pair<uint64_t, uint64_t>>& ranges, uint64_t number) {
  const auto next =
      std::upper_bound(ranges.begin(), ranges.end(), number,
                       [](uint64_t wanted, const auto& range) { return wanted < range.first; });
  return next != ranges.begin() && number < std::prev(next)->second;
}

}  // namespace

ForwardCalls::ForwardCalls(ForwardState& state, OutsideWatch& outside, ForwardSlots& slots)
    : state_(state),
      outside_(outside),
      pending_(*state.region),
      products_(state, outside, slots, pending_, saved_),
      saves_(state, slots, products_, saved_,
             [this](const at::Tensor& tensor) { before_slot(tensor); }),
      collectives_(state, products_, pending_),
      ops_(state, outside, pending_, products_, saves_, collectives_, saved_) {}

/// Returns `tensors` as ops of this region see them; `replaced` owns them if they differ.
c10::ArrayRef<at::Tensor> ForwardCalls::as_seen(c10::ArrayRef<at::Tensor> tensors,
                                                c10::SmallVector<at::Tensor, 2>& replaced) const {
  if (!state_.scope.in_replay()) return tensors;
  replaced.assign(tensors.begin(), tensors.end());
  for (at::Tensor& tensor : replaced) {
    if (tensor.defined()) tensor = OpObserver::as_seen(state_.scope, tensor);
  }
  return replaced;
}

NamedCalls::Action ForwardCalls::begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  if (!takes_ops()) return begin_unwatched(call);
  if (call.is_saved()) {  // First, because destructors may begin calls.
    if (!call.is_op) saves_.end_expected();
    go_on();
  }
  check_call(call);
  if (state_.recorder && call.keep == Keep::kAllRegions && state_.scope.previous())
    state_.recorder->give_up("a call that all regions keep, in a nested region");
  CallLog& calls = state_.region->calls();
  const size_t log_position = state_.region->ops().end();
  c10::SmallVector<at::Tensor, 2> replaced;
  const c10::ArrayRef<at::Tensor> seen = as_seen(arguments, replaced);
  log_call(call, seen);
  CallRecord& record = calls.add(call);
  record.log_position = log_position;
  record.first_slot = state_.region->slots().size();
  names_.insert(record.call.name);
  products_.begin_call();
  record.threw = call.is_saved();  // Stays set if begin_saved() throws.
  if (call.is_saved()) begin_saved(record, seen);
  record.threw = false;
  open_.push_back(call.is_saved() ? Open::kSaved : Open::kRecomputed);
  if (!call.is_saved()) products_.count_recomputed(+1);
  return Action::kRun;
}

/// Begins a call that gets no record, inside a SAVE call or in a backward inside the function.
NamedCalls::Action ForwardCalls::begin_unwatched(const NamedCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !state_.is_saving || call.is_saved(), state_.where(call),
      ": expected SAVE calls only inside ", saved_.record->call.str(),
      ", got a RECOMPUTE call (recompute=True) nested inside a recompute=False one. Nothing in a "
      "SAVE call runs again: take the inner name away, or give the outer call the policy "
      "RECOMPUTE.");
  open_.push_back(state_.is_saving ? Open::kInner : Open::kUnwatched);
  return Action::kRun;
}

void ForwardCalls::check_call(const NamedCall& call) const {
  TORCH_CHECK(!names_.contains(call.name), state_.where(call),
              ": expected a name that is used once in a region, got it for the second time. Give "
              "each call its own name, or open a NameScope in the region around repeated code "
              "(name_scope in Python).");
  if (!call.is_saved()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      state_.region->intercept(), state_.where(call),
      ": expected a region whose ops are seen, got one with intercept = false, in which nobody "
      "knows who reads the call's results. Set intercept = true, or use the policy RECOMPUTE.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !state_.has_tangents, state_.where(call),
      ": expected results without tangents, got a function that has made tensors with tangents "
      "(forward-mode AD), which are not kept. Put all that has tangents into a SAVE call, or use "
      "the policy RECOMPUTE.");
  TORCH_CHECK(
      call.policy != Policy::kOffload || state_.settings.offload_store || state_.settings.hooks ||
          UserPair::inside(state_.scope, call.keep),
      state_.where(call),
      ": expected a place to keep its tensors in, got neither "
      "CheckpointOptions::offload_store nor CheckpointOptions::saved_tensors_hooks "
      "(offload_store=..., saved_tensors_hooks=... in Python). Set one of them, or use the policy "
      "SAVE.");
}

void ForwardCalls::log_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  if (!state_.logs()) return;
  SeenTensors seen;
  for (const at::Tensor& argument : arguments) {
    if (argument.defined())
      seen.push_back({.tensor = &argument, .origin = outside_.origin_of(argument)});
  }
  write_call(state_.region->ops().writer(), call.hash(), seen, *state_.region);
  state_.count_written_down();
}

void ForwardCalls::begin_saved(CallRecord& record, c10::ArrayRef<at::Tensor> arguments) {
  // Enters the arguments in the table of origins before the call runs. Otherwise an argument that
  // no op has used would count as made by the call if the call returned it.
  for (const at::Tensor& argument : arguments) {
    if (argument.defined()) outside_.origin_of(argument);
  }
  saved_.index = state_.region->calls().records().size() - 1;
  saved_.arguments.assign(arguments.begin(), arguments.end());
  const RegionEntry::Options& state = state_.settings.state;
  if (state.preserve_rng) saved_.generators = mark_generators(state.generators);
  saves_.begin_call();
  nodes_.emplace_back(at::sequence_number::peek(), 0);
  saved_.record = &record;  // Last, because nothing can throw any more.
  state_.is_saving = true;
}

void ForwardCalls::end(const CallResults& returned) {
  const Open kind = open_.back();
  CallResults replaced;
  if (state_.scope.in_replay() && (ops_.is_skipped() || kind == Open::kSaved)) {
    replaced.holder = returned.holder;
    replaced.work = returned.work;
    as_seen(returned.tensors, replaced.tensors);
  }
  const CallResults& results = replaced.tensors.empty() ? returned : replaced;
  if (ops_.is_skipped()) ops_.end_skipped(results.tensors);
  std::vector<at::Tensor> dying;
  if (kind == Open::kSaved) dying = end_saved(results);
  open_.pop_back();
  if (kind == Open::kRecomputed) products_.count_recomputed(-1);
  if (kind == Open::kSaved) drop_unseen(std::move(dying));
}

void ForwardCalls::abandon() noexcept {
  ops_.forget_skipped();
  saves_.forget_names(open_.size());
  const Open kind = open_.back();
  open_.pop_back();
  if (kind == Open::kRecomputed) products_.count_recomputed(-1);
  if (kind == Open::kSaved) abandon_saved();
}

void ForwardCalls::abandon_saved() noexcept {
  saved_.record->threw = true;
  if (!saved_.written.empty()) thrown_.writing = saved_.index;
  saves_.abandon_call();
  for (at::Tensor& argument : saved_.arguments) {
    if (!argument.defined() || saved_.has_written(argument)) continue;
    // Hooks that the function has opened may have thrown, so they are not called again.
    if (const auto number = products_.product_in(argument)) products_.forget_hooks(*number);
    thrown_.read.push_back(std::move(argument));
  }
  drop_unseen(close_saved());
}

// A replay runs a thrown call up to where it threw, so its arguments are kept, but only when the
// function goes on, because user hooks cannot run while an exception propagates.
void ForwardCalls::keep_read_by_thrown() {
  auto read = std::exchange(thrown_.read, {});
  for (const at::Tensor& argument : read) need(argument);
  drop_unseen(std::move(read));
}

// An op that throws may have written a part of a tensor without a new version. Replays run the call
// again up to where it threw, but do not compare its ops, so such a write is refused.
void ForwardCalls::check_thrown() const {
  if (thrown_.writing == SavedCall::kNone) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, state_.where(state_.region->calls().records()[thrown_.writing].call),
      ": expected a SAVE call that writes what it has not made to return, got one that "
      "threw, and a function that went on: what it has written until then a replay could not tell. "
      "Catch the exception outside of the region, or use the policy RECOMPUTE.");
}

void ForwardCalls::finish() {
  check_thrown();
  saves_.check_exchanged();
  keep_read_by_thrown();
  collectives_.finish();
}

// Only a skip in a SAVE call of this region matters: the skipped call is a part of the SAVE call.
void ForwardCalls::before_skip(c10::ArrayRef<at::Tensor> writes,
                               c10::ArrayRef<at::Tensor> arguments) {
  if (!state_.is_saving) return;
  c10::SmallVector<at::Tensor, 2> replaced;
  ops_.begin_skipped(writes, as_seen(arguments, replaced));
}

std::vector<at::Tensor> ForwardCalls::end_saved(const CallResults& results) {
  CallRecord& record = *saved_.record;
  products_.end_call();  // First, because results kept from here on are kept with the call's hooks.
  FirstPosition<const c10::TensorImpl*> seen;
  for (const auto i : c10::irange(results.tensors.size())) {
    const c10::TensorImpl* const impl = results.tensors[i].unsafeGetTensorImpl();
    record.outputs.push_back(products_.output_of(results.tensors[i], i));
    if (const auto first = seen.find(impl)) record.outputs[i].same_as = *first;
    seen.add(impl);
  }
  record.holder = results.holder;
  state_.region->calls().find_results();
  for (const SavedCall::Written& written : saved_.written) products_.add_write(written);
  for (const GeneratorMark& mark : saved_.generators) {
    if (mark.has_moved()) record.generators.push_back(GeneratorState::read(mark.generator()));
  }
  {
    const SuspendScopes suspend;
    for (const auto& hook : state_.settings.state.state_hooks)
      record.states.push_back(hook->snapshot());
  }
  if (!record.call.collective.empty() || !results.work.isNone())
    collectives_.end_call(saved_, results);
  record.ended = true;
  return close_saved();
}

// Note [What dies with a SAVE call]: finalizers of tensors that the call held may run ops, named
// calls and whole regions. In plain code these tensors die later, with the graph or with the
// region's caller. So they are destroyed as if outside the region, when the call no longer counts
// as running, and when nothing uses the call's record or iterates over a list that may grow.
std::vector<at::Tensor> ForwardCalls::close_saved() noexcept {
  nodes_.back().second = at::sequence_number::peek();
  std::vector<at::Tensor> dying = ops_.end_call();
  saves_.end_call(dying);
  state_.is_saving = false;
  return dying;
}

void ForwardCalls::expect_saved(const std::vector<std::string>& names,
                                c10::ArrayRef<at::Tensor> tensors, const SavingState& saving) {
  if (open_.back() != Open::kSaved) return name_saved(names, tensors);
  saves_.expect(names, tensors, saving);
}

void ForwardCalls::name_saved(const std::vector<std::string>& names,
                              c10::ArrayRef<at::Tensor> tensors) {
  if (state_.is_saving) saves_.name(names, tensors, open_.size());
}

// A slot counts as a read, because it may be that no op outside SAVE calls reads a tensor that a
// custom function saves. But arguments of a nested region are read by that region's ops, if at all.
void ForwardCalls::before_slot(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_of_python_class(tensor)))
    collectives_.read_inside(tensor, /*reader=*/nullptr);
  if (const auto number = products_.product_in(tensor))
    state_.region->calls().product(*number).mark_in_slot(state_.region->slots().size());
  if (!state_.recorder && packs_region_input()) return;
  need(tensor);
  // On a tape a copy has the value of its original, so the tape reads the original.
  if (const auto copied = copied_original(tensor); state_.recorder && copied && !copied->after_op)
    need(copied->tensor);
}

void ForwardCalls::need(const at::Tensor& tensor) {
  if (is_of_python_class(tensor)) collectives_.read_inside(tensor, /*reader=*/nullptr);
  products_.need(tensor);
}

void ForwardCalls::check_backward(const EdgeList& roots) const {
  if (nodes_.empty()) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const auto made_in_call = [&](const torch::autograd::Node& node) {
    return node.thread_id() == thread && is_in_range(nodes_, node.sequence_nr());
  };
  visit_nodes(roots, [&](const torch::autograd::Node& node) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !made_in_call(node), "[checkpoint] ", state_.region->label(), ", node ", node.name(),
        ": expected a backward inside the region's function that passes no SAVE call of the "
        "region, got one that does; a replay, which does not run the call, could not follow. Give "
        "the call the policy RECOMPUTE.");
  });
}

}  // namespace remat
