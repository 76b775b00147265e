// SPDX-License-Identifier: BSD-3-Clause

// The stack of named calls of a forward, and what its SAVE calls do.
#include "forward_calls.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <remat/tape/hidden_scopes.h>
#include <remat/tape/op_observer.h>

#include "graph_walk.h"
#include "op_writer.h"
#include "tape_recorder.h"

namespace remat {
namespace {

/// True if `number` is in one of `ranges`, which follow each other.
bool is_in_range(const std::vector<std::pair<uint64_t, uint64_t>>& ranges, uint64_t number) {
  const auto next =
      std::upper_bound(ranges.begin(), ranges.end(), number,
                       [](uint64_t wanted, const auto& range) { return wanted < range.first; });
  return next != ranges.begin() && number < std::prev(next)->second;
}

/// True if argument `i`, which the op writes, may become a part of the graph. Statistics do not.
bool may_join_graph(const OpCall& call, size_t i) {
  if (!c10::GradMode::is_enabled() || !call.info().writes_argument(i, /*training=*/false))
    return false;
  bool any = false;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { any = any || tensor.requires_grad(); });
  return any;
}

}  // namespace

ForwardCalls::ForwardCalls(ForwardState& state, OutsideWatch& outside, ForwardSlots& slots)
    : state_(state),
      outside_(outside),
      pending_(*state.region),
      products_(state, outside, slots, pending_, saved_, op_),
      saves_(state, slots, products_, saved_, op_),
      collectives_(state, products_, pending_) {}

std::string ForwardCalls::where(const NamedCall& call) const {
  return c10::str("[checkpoint] ", state_.region->label(), ", ", call.str());
}

/// `tensors` as ops of this region see them; `replaced` holds them if they are others.
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
  record.threw = call.is_saved();  // until it runs
  if (call.is_saved()) begin_saved(record, seen);
  record.threw = false;
  open_.push_back(call.is_saved() ? Open::kSaved : Open::kRecomputed);
  if (!call.is_saved()) products_.count_recomputed(+1);
  return Action::kRun;
}

/// Inside a SAVE call, or in a backward inside the function.
NamedCalls::Action ForwardCalls::begin_unwatched(const NamedCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !state_.is_saving || call.is_saved(), where(call), ": expected SAVE calls only inside ",
      saved_.record->call.str(),
      ", got a RECOMPUTE call (recompute=True) nested inside a recompute=False one. Nothing in a "
      "SAVE call runs again: take the inner name away, or give the outer call the policy "
      "RECOMPUTE.");
  open_.push_back(state_.is_saving ? Open::kInner : Open::kUnwatched);
  return Action::kRun;
}

void ForwardCalls::check_call(const NamedCall& call) const {
  TORCH_CHECK(!names_.contains(call.name), where(call),
              ": expected a name that is used once in a region, got it for the second time. Give "
              "each call its own name, or put repeated code in a NameScope (name_scope in "
              "Python).");
  if (!call.is_saved()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      state_.region->intercept(), where(call),
      ": expected a region whose ops are seen, got one with intercept = false, in which nobody "
      "knows who reads the call's results. Set intercept = true, or use the policy RECOMPUTE.");
  TORCH_CHECK(
      call.policy != Policy::kOffload || state_.settings.offload_store || state_.settings.hooks ||
          UserPair::inside(state_.scope, call.keep),
      where(call),
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
  go_on();
  // A result that is an argument is told from one that the call makes, also if no op has seen it.
  // Before the call counts as running: what code around it is given a SAVE call has not made.
  for (const at::Tensor& argument : arguments) {
    if (argument.defined()) outside_.origin_of(argument);
  }
  saved_.index = state_.region->calls().records().size() - 1;
  saved_.arguments.assign(arguments.begin(), arguments.end());
  const FunctionReplayer::Options& state = state_.settings.state;
  if (state.preserve_rng) saved_.generators = mark_generators(state.generators);
  saves_.begin_call();
  nodes_.emplace_back(at::sequence_number::peek(), 0);
  saved_.record = &record;  // last, when nothing throws any more
  state_.is_saving = true;
}

void ForwardCalls::end(const CallResults& returned) {
  const Open kind = open_.back();
  CallResults replaced;
  if (state_.scope.in_replay() && (skipped_ || kind == Open::kSaved)) {
    replaced.holder = returned.holder;
    replaced.work = returned.work;
    as_seen(returned.tensors, replaced.tensors);
  }
  const CallResults& results = replaced.tensors.empty() ? returned : replaced;
  if (skipped_) enter_skipped(results);
  if (kind == Open::kSaved) end_saved(results);
  open_.pop_back();
  if (kind == Open::kRecomputed) products_.count_recomputed(-1);
}

void ForwardCalls::abandon() noexcept {
  skipped_.reset();
  const Open kind = open_.back();
  open_.pop_back();
  if (kind == Open::kRecomputed) products_.count_recomputed(-1);
  if (kind != Open::kSaved) return;
  saved_.record->threw = true;
  if (!saved_.written.empty()) thrown_.writing = saved_.index;
  saves_.forget_expected();
  for (at::Tensor& argument : saved_.arguments) {
    if (!argument.defined() || saved_.has_written(argument)) continue;
    // Hooks that the function has opened may be what threw, and are not asked again.
    if (const auto number = products_.product_in(argument)) products_.forget_hooks(*number);
    thrown_.read.push_back(std::move(argument));
  }
  close_saved();
}

// Replays run it again, up to where it threw. Kept as soon as the function goes on, since hooks of
// the user, which cannot run while the exception is on its way, may get what is kept.
void ForwardCalls::keep_read_by_thrown() {
  for (const at::Tensor& argument : std::exchange(thrown_.read, {})) need(argument);
}

// An op that throws may have written a part, with no new version. A replay runs the call again up
// to where it threw, and nobody compares what it does.
void ForwardCalls::check_thrown() const {
  if (thrown_.writing == SavedCall::kNone) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, where(state_.region->calls().records()[thrown_.writing].call),
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

// Also for a call inside a SAVE call of this region, which is a part of what that one does.
void ForwardCalls::before_skip(c10::ArrayRef<at::Tensor> writes,
                               c10::ArrayRef<at::Tensor> arguments) {
  if (!state_.is_saving) return;
  c10::SmallVector<at::Tensor, 2> replaced;
  const c10::ArrayRef<at::Tensor> seen = as_seen(arguments, replaced);
  skipped_.emplace(seen.begin(), seen.end());
  for (const at::Tensor& tensor : writes)
    note_write(/*op=*/nullptr, tensor, outside_.origin_of(tensor), /*joins_graph=*/false);
}

void ForwardCalls::enter_skipped(const CallResults& results) {
  FirstPosition<const void*> given;
  for (const at::Tensor& argument : *skipped_) {
    if (argument.defined()) given.add(memory_of(argument));
  }
  for (const at::Tensor& tensor : results.tensors) {
    if (tensor.defined() && memory_of(tensor) && !given.contains(memory_of(tensor)))
      enter_made(tensor);
  }
  skipped_.reset();
}

void ForwardCalls::end_saved(const CallResults& results) {
  CallRecord& record = *saved_.record;
  products_.end_call();  // first: what is kept from here on is kept with its hooks
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
  close_saved();
}

void ForwardCalls::close_saved() noexcept {
  for (auto& storage : made_.in_call) {
    const void* const address = storage._unsafe_get_target();
    if (storage.expired()) {
      // The address may come again, for something else.
      state_.storages.enter(address, Origin::inside());
    } else if (state_.storages.find(address).is_in_call()) {
      made_.lived_on.push_back(std::move(storage));
    }
  }
  made_.in_call.clear();
  for (const at::Tensor& tensor : made_.opaque_in_call) {
    if (state_.storages.find(memory_of(tensor)).is_in_call())
      state_.storages.enter(memory_of(tensor), Origin::inside());
  }
  made_.opaque_in_call.clear();
  nodes_.back().second = at::sequence_number::peek();
  saves_.end_call();
  op_.runs = false;
  state_.is_saving = false;  // first: what dies with the call may run ops
  skipped_.reset();
  saved_ = {};
}

void ForwardCalls::before_saved_op(const OpCall& call) {
  const OpInfo& info = call.info();
  saves_.before_op();
  op_.memories.clear();
  op_.runs = true;
  op_.takes_part = false;
  if (info.is_communication()) collectives_.before_op(call);
  for (const OpTensor& entry : call.tensors()) {
    const at::Tensor& tensor = *entry.tensor;
    op_.memories.add(entry.memory);
    const Origin known = state_.storages.find(entry.memory);
    if (known.is_unknown() || known.is_outside()) outside_.note_captured(tensor, known);
    if (!tensor.has_storage() && !info.reads_data() && !known.is_in_call()) op_.takes_part = true;
    if (call.writes_argument(entry.argument) && entry.memory) {
      const Origin origin = outside_.origin_of(tensor);
      outside_.check_writable(info, tensor, origin);
      if (info.is_communication()) collectives_.note_received(info, tensor, origin);
      note_write(&info, tensor, origin, may_join_graph(call, entry.argument));
    }
  }
}

void ForwardCalls::note_write(const OpInfo* op, const at::Tensor& tensor, Origin origin,
                              bool joins_graph) {
  if (origin.is_in_call() || saved_.has_written(tensor)) return;
  if (state_.recorder) state_.recorder->before_saved_write(tensor);
  SavedCall::Written written{.tensor = tensor,
                             .origin = origin,
                             .argument = saved_.argument_on_storage_of(tensor),
                             .required_grad = tensor.requires_grad()};
  if (!origin.is_outside()) check_findable(op, written);
  keep_before_write(written, joins_graph);
  saved_.written_memory.add(memory_of(tensor));
  saved_.written.push_back(std::move(written));
}

/// Throws NotImplementedError if a replay could not find memory that the region has made.
void ForwardCalls::check_findable(const OpInfo* op, const SavedCall::Written& written) const {
  const at::Tensor& tensor = written.tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(
      written.argument != SavedCall::kNone && tensor.has_storage() && !is_of_python_class(tensor),
      where(saved_.record->call), ", op ", op ? op->name() : "that the call runs",
      ": expected to write strided arguments of the call or tensors from outside the region, got "
      "a tensor (",
      TensorMeta(tensor).str(), ") that the function captures and that the region made, or ",
      "memory of a sparse or opaque one, which a replay could not find. Pass it as an argument, "
      "or use the policy RECOMPUTE.");
}

/// The old value is for replays: of memory from outside as the region's argument, or for what read
/// it before, as is its place outside of the graph; of a kept product as a copy.
void ForwardCalls::keep_before_write(const SavedCall::Written& written, bool joins_graph) {
  const auto& [tensor, origin, argument, required_grad] = written;
  if (origin.is_outside()) {
    const OutsideStorage& outside = std::as_const(*state_.region).outside()[origin.number()];
    // Regions inside may be told that it is skipped, and see no op of it.
    const bool is_for_all =
        saved_.record->call.keep == Keep::kAllRegions && state_.scope.previous() != nullptr;
    if (outside.is_read() || outside.is_argument() ||
        (joins_graph && !required_grad && !is_for_all)) {
      pending_.settle(tensor);
      outside_.keep_before_write(tensor, origin);
    }
  } else if (origin.is_product()) {
    CallProduct& product = state_.region->calls().product(origin.number());
    if (product.is_kept() && !product.is_copied()) products_.keep_copy(product, tensor);
  }
}

void ForwardCalls::after_saved_op(const OpCall& call) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    const auto* const memory = memory_of(tensor);
    if (!memory || op_.memories.contains(memory)) return;
    if (op_.takes_part) {
      state_.storages.enter(memory, Origin::inside());  // no argument has it: not to be written
    } else {
      enter_made(tensor);
    }
  });
  saves_.after_op();
  op_.runs = false;
}

// A storage that nobody else has is new, although its address may have been another's: only what
// the region made itself gives its address free. An in-place op returns one that is not new.
void ForwardCalls::adopt(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory || !tensor.has_storage()) return;
  const Origin origin = state_.storages.find(memory);
  if (origin.is_unknown() || (origin.is_inside() && tensor.storage().use_count() == 1))
    enter_made(tensor);
}

void ForwardCalls::enter_made(const at::Tensor& tensor) {
  state_.storages.enter(memory_of(tensor), Origin::in_call());
  if (tensor.has_storage()) {
    made_.in_call.push_back(weak_storage(tensor));
  } else {
    made_.opaque_in_call.push_back(tensor);
  }
}

void ForwardCalls::expect_saved(std::vector<std::string> names, c10::ArrayRef<at::Tensor> tensors) {
  if (open_.back() != Open::kSaved) return name_saved(names, tensors);
  saves_.expect(std::move(names), tensors);
}

void ForwardCalls::name_saved(const std::vector<std::string>& names,
                              c10::ArrayRef<at::Tensor> tensors) {
  if (state_.is_saving) saves_.name(names, tensors);
}

void ForwardCalls::before_slot(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_of_python_class(tensor)))
    collectives_.read_inside(tensor, /*reader=*/nullptr);
  if (const auto number = products_.product_in(tensor))
    state_.region->calls().product(*number).mark_in_slot(state_.region->slots().size());
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
