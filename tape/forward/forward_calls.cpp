// SPDX-License-Identifier: BSD-3-Clause

// Watching SAVE calls run.
#include "forward_calls.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "graph_walk.h"
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

/// True if its caller waits for it later. Sends and receives do not say.
bool is_async(const OpCall& call) {
  const auto& arguments = call.info().op().schema().arguments();
  for (const auto i : c10::irange(arguments.size())) {
    if (arguments[i].name() == "async_op") return call.argument(i).toBool();
  }
  return true;
}

}  // namespace

bool ForwardCalls::SavedCall::has_written(const at::Tensor& tensor) const {
  return written_memory.contains(memory_of(tensor));
}

size_t ForwardCalls::SavedCall::argument_on_storage_of(const at::Tensor& tensor) const {
  constexpr size_t kFew = 16;
  if (arguments.size() > kFew) return hashed_argument_on_storage_of(tensor);
  const auto is = [&](const at::Tensor& other) { return other.is_same(tensor); };
  const auto shares_storage = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() && tensor.has_storage() &&
           other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  };
  auto found = std::find_if(arguments.begin(), arguments.end(), is);
  if (found == arguments.end())
    found = std::find_if(arguments.begin(), arguments.end(), shares_storage);
  return found == arguments.end() ? kNone : found - arguments.begin();
}

size_t ForwardCalls::SavedCall::hashed_argument_on_storage_of(const at::Tensor& tensor) const {
  const auto storage_of = [](const at::Tensor& of) -> const void* {
    return of.defined() && of.has_storage() ? of.storage().unsafeGetStorageImpl() : nullptr;
  };
  if (positions.empty()) {
    for (const auto i : c10::irange(arguments.size())) {
      positions.try_emplace(arguments[i].unsafeGetTensorImpl(), i);
      if (const void* const storage = storage_of(arguments[i])) positions.try_emplace(storage, i);
    }
  }
  auto found = positions.find(tensor.unsafeGetTensorImpl());
  if (const void* const storage = storage_of(tensor); storage && found == positions.end())
    found = positions.find(storage);
  return found == positions.end() ? kNone : found->second;
}

std::string ForwardCalls::where(const NamedCall& call) const {
  return c10::str("[checkpoint] ", region_->label(), ", ", call.str());
}

bool ForwardCalls::is_own_code() const {
  return torch::autograd::get_current_graph_task_id() == scope_.graph_task_;
}

bool ForwardCalls::takes_ops() const {
  return !saving() && is_own_code();
}

bool ForwardCalls::is_given(const at::Tensor& tensor) const {
  return scope_.storages_.is_given(tensor);
}

/// `tensors` as ops of this region see them; `replaced` holds them if they are others.
c10::ArrayRef<at::Tensor> ForwardCalls::as_seen(c10::ArrayRef<at::Tensor> tensors,
                                                c10::SmallVector<at::Tensor, 2>& replaced) const {
  if (!scope_.in_replay()) return tensors;
  replaced.assign(tensors.begin(), tensors.end());
  for (at::Tensor& tensor : replaced) {
    if (tensor.defined()) tensor = scope_.as_seen(tensor);
  }
  return replaced;
}

NamedCalls::Action ForwardCalls::begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  if (!takes_ops()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !saving() || call.is_saved(), where(call), ": expected SAVE calls only inside ",
        saved_.record->call.str(),
        ", got a RECOMPUTE call (recompute=True) nested inside a recompute=False one. Nothing in a "
        "SAVE call runs again: take the inner name away, or give the outer call the policy "
        "RECOMPUTE.");
    open_.push_back(saving() ? Open::kInner : Open::kUnwatched);
    return Action::kRun;
  }
  check_call(call);
  if (scope_.recorder_ && call.keep == Keep::kAllRegions && scope_.previous())
    scope_.recorder_->give_up("a call that all regions keep, in a nested region");
  const size_t log_position = region_->ops().end();
  c10::SmallVector<at::Tensor, 2> replaced;
  const c10::ArrayRef<at::Tensor> seen = as_seen(arguments, replaced);
  scope_.log_call(call, seen);
  CallRecord& record = region_->calls().add(call);
  record.log_position = log_position;
  record.first_slot = region_->slots().size();
  names_.insert(record.call.name);
  ends_.emplace_back();
  open_.push_back(call.is_saved() ? Open::kSaved : Open::kRecomputed);
  if (call.is_saved()) {
    go_on();
    // A result that is an argument is told from one that the call makes, also if no op has seen it.
    // Before the call counts as running: what code around it is given a SAVE call has not made.
    for (const at::Tensor& argument : seen) {
      if (argument.defined()) scope_.origin_of(argument);
    }
    saved_.record = &record;
    saved_.index = region_->calls().records().size() - 1;
    begin_saved(seen);
  } else {
    ++recomputed_;
  }
  return Action::kRun;
}

void ForwardCalls::check_call(const NamedCall& call) const {
  TORCH_CHECK(!names_.contains(call.name), where(call),
              ": expected a name that is used once in a region, got it for the second time: "
              "Duplicate remat region name '",
              call.name,
              "' during forward. Give each call its own name, or put repeated code in a NameScope "
              "(name_scope in Python).");
  if (!call.is_saved()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      region_->intercept(), where(call),
      ": expected a region whose ops are seen, got one with intercept = false, in which nobody "
      "knows who reads the call's results. Set intercept = true, or use the policy RECOMPUTE.");
  TORCH_CHECK(
      call.policy != Policy::kOffload || settings_.offload_store || settings_.hooks ||
          UserPair::inside(scope_, call.keep),
      where(call),
      ": expected a place to keep its tensors in, got neither "
      "CheckpointOptions::offload_store nor CheckpointOptions::saved_tensors_hooks "
      "(offload_store=..., saved_tensors_hooks=... in Python). Set one of them, or use the policy "
      "SAVE.");
}

void ForwardCalls::begin_saved(c10::ArrayRef<at::Tensor> arguments) {
  saved_.arguments.assign(arguments.begin(), arguments.end());
  place_ = ScopePlace::here();
  nodes_.emplace_back(at::sequence_number::peek(), 0);
  if (settings_.state.preserve_rng) generators_ = mark_generators(settings_.state.generators);
}

void ForwardCalls::end(const CallResults& returned) {
  const Open kind = open_.back();
  CallResults replaced;
  if (scope_.in_replay() && (skipped_ || kind == Open::kSaved)) {
    replaced.holder = returned.holder;
    replaced.work = returned.work;
    as_seen(returned.tensors, replaced.tensors);
  }
  const CallResults& results = replaced.tensors.empty() ? returned : replaced;
  if (skipped_) enter_skipped(results);
  if (kind == Open::kSaved) end_saved(results);
  open_.pop_back();
  if (kind == Open::kRecomputed) --recomputed_;
}

void ForwardCalls::abandon() noexcept {
  const Open kind = open_.back();
  open_.pop_back();
  if (kind == Open::kRecomputed) --recomputed_;
  if (kind != Open::kSaved) return;
  saved_.record->threw = true;
  if (!saved_.written.empty()) threw_writing_ = saved_.index;
  expected_.clear();
  for (at::Tensor& argument : saved_.arguments) {
    if (!argument.defined() || saved_.has_written(argument)) continue;
    // Hooks that the function has opened may be what threw, and are not asked again.
    if (const auto number = product_in(argument))
      ends_[region_->calls().product(*number).call()].pair = {};
    read_by_thrown_.push_back(std::move(argument));
  }
  close_saved();
}

// Replays run it again, up to where it threw. Kept as soon as the function goes on, since hooks of
// the user, which cannot run while the exception is on its way, may get what is kept.
void ForwardCalls::keep_read_by_thrown() {
  for (const at::Tensor& argument : std::exchange(read_by_thrown_, {})) need(argument);
}

// Also for a call inside a SAVE call of this region, which is a part of what that one does.
void ForwardCalls::before_skip(c10::ArrayRef<at::Tensor> writes,
                               c10::ArrayRef<at::Tensor> arguments) {
  if (!saving()) return;
  skipped_ = true;
  c10::SmallVector<at::Tensor, 2> replaced;
  const c10::ArrayRef<at::Tensor> seen = as_seen(arguments, replaced);
  skipped_arguments_.assign(seen.begin(), seen.end());
  for (const at::Tensor& tensor : writes)
    note_write(/*op=*/nullptr, tensor, scope_.origin_of(tensor), /*joins_graph=*/false);
}

void ForwardCalls::enter_skipped(const CallResults& results) {
  FirstPosition<const void*> given;
  for (const at::Tensor& argument : skipped_arguments_) {
    if (argument.defined()) given.add(memory_of(argument));
  }
  for (const at::Tensor& tensor : results.tensors) {
    if (tensor.defined() && memory_of(tensor) && !given.contains(memory_of(tensor)))
      enter_made(tensor);
  }
  skipped_ = false;
  skipped_arguments_.clear();
}

void ForwardCalls::end_saved(const CallResults& results) {
  CallRecord& record = *saved_.record;
  // First: what is kept from here on is kept with the hooks and the context of the call.
  CallEnd& end = ends_.back();
  end.pair = UserPair::inside(scope_, record.call.keep);
  end.context = end.pair            ? end.pair.capture_context()
                : settings_.hooks   ? UserHooksScope::capture(*settings_.hooks)
                : scope_.previous() ? scope_.previous()->capture_context()
                                    : std::any();
  FirstPosition<const c10::TensorImpl*> seen;
  for (const auto i : c10::irange(results.tensors.size())) {
    const c10::TensorImpl* const impl = results.tensors[i].unsafeGetTensorImpl();
    record.outputs.push_back(output_of(results.tensors[i], i));
    if (const auto first = seen.find(impl)) record.outputs[i].same_as = *first;
    seen.add(impl);
  }
  record.holder = results.holder;
  region_->calls().find_results();
  for (const Written& written : saved_.written) add_write(written);
  for (const GeneratorMark& mark : generators_) {
    if (mark.has_moved()) record.generators.push_back(GeneratorState::read(mark.generator()));
  }
  {
    const SuspendScopes suspend;
    for (const auto& hook : settings_.state.state_hooks) record.states.push_back(hook->snapshot());
  }
  if (!record.call.collective.empty() || !results.work.isNone()) note_work(results);
  record.ended = true;
  close_saved();
}

void ForwardCalls::close_saved() noexcept {
  for (auto& storage : made_) {
    const void* const address = storage._unsafe_get_target();
    if (storage.expired()) {
      // The address may come again, for something else.
      scope_.storages_.enter(address, Origin::inside());
    } else if (scope_.storages_.find(address).is_in_call()) {
      lived_on_.push_back(std::move(storage));
    }
  }
  made_.clear();
  drop_pending();  // the op may have thrown
  op_runs_ = false;
  for (const at::Tensor& tensor : made_opaque_) {
    if (scope_.storages_.find(memory_of(tensor)).is_in_call())
      scope_.storages_.enter(memory_of(tensor), Origin::inside());
  }
  made_opaque_.clear();
  named_.clear();
  generators_.clear();
  nodes_.back().second = at::sequence_number::peek();
  if (!expected_.empty()) ended_ = std::move(saved_);
  saved_ = {};
  skipped_ = false;
  skipped_arguments_.clear();
}

void ForwardCalls::before_saved_op(const OpCall& call) {
  const OpInfo& info = call.info();
  drop_pending();
  op_memories_.clear();
  op_runs_ = true;
  takes_part_ = false;
  if (info.is_communication()) is_async_ = is_async(call);
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const void* const given = memory_of(tensor);
    op_memories_.add(given);
    const Origin known = scope_.storages_.find(given);
    if (known.is_unknown() || known.is_outside()) scope_.note_captured(tensor, known);
    if (!tensor.has_storage() && !info.reads_data() && !known.is_in_call()) takes_part_ = true;
    if (call.writes_argument(i) && given) {
      const Origin origin = scope_.origin_of(tensor);
      scope_.check_writable(info, tensor, origin);
      if (info.is_communication()) note_received(info, tensor, origin);
      note_write(&info, tensor, origin, may_join_graph(call, i));
    }
  });
}

void ForwardCalls::note_write(const OpInfo* op, const at::Tensor& tensor, Origin origin,
                              bool joins_graph) {
  if (origin.is_in_call() || saved_.has_written(tensor)) return;
  if (scope_.recorder_) scope_.recorder_->before_saved_write(tensor);
  Written written{.tensor = tensor,
                  .origin = origin,
                  .argument = saved_.argument_on_storage_of(tensor),
                  .required_grad = tensor.requires_grad()};
  if (origin.is_outside()) {
    // Its old value is for replays: as the region's argument, or for what read it before; as is
    // its place outside of the graph.
    const OutsideLog& outside = region_->outside();
    // Regions inside may be told that it is skipped, and see no op of it.
    const bool is_for_all =
        saved_.record->call.keep == Keep::kAllRegions && scope_.previous() != nullptr;
    if (outside[origin.number()].is_read() || outside[origin.number()].is_argument() ||
        (joins_graph && !tensor.requires_grad() && !is_for_all)) {
      settle(tensor);
      scope_.keep_before_write(tensor, origin);
    }
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        written.argument != kNone && tensor.has_storage() && !is_of_python_class(tensor),
        where(saved_.record->call), ", op ", op ? op->name() : "that the call runs",
        ": expected to write strided arguments of the call or tensors from outside the region, got "
        "a tensor (",
        TensorMeta(tensor).str(), ") that the function captures and that the region made, or ",
        "memory of a sparse or opaque one, which a replay could not find. Pass it as an argument, "
        "or use the policy RECOMPUTE.");
    if (origin.is_product()) {
      CallProduct& product = region_->calls().product(origin.number());
      if (product.is_kept() && !product.is_copied()) keep_copy(product, tensor);
    }
  }
  saved_.written_memory.add(memory_of(tensor));
  saved_.written.push_back(std::move(written));
}

void ForwardCalls::after_saved_op(const OpCall& call) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    const auto* const memory = memory_of(tensor);
    if (!memory || op_memories_.contains(memory)) return;
    if (takes_part_) {
      scope_.storages_.enter(memory, Origin::inside());  // no argument has it: not to be written
    } else {
      enter_made(tensor);
    }
  });
  pack_pending();
  op_runs_ = false;
}

// A storage that nobody else has is new, although its address may have been another's: only what
// the region made itself gives its address free. An in-place op returns one that is not new.
void ForwardCalls::adopt(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory || !tensor.has_storage()) return;
  const Origin origin = scope_.storages_.find(memory);
  if (origin.is_unknown() || (origin.is_inside() && tensor.storage().use_count() == 1))
    enter_made(tensor);
}

void ForwardCalls::enter_made(const at::Tensor& tensor) {
  scope_.storages_.enter(memory_of(tensor), Origin::in_call());
  if (tensor.has_storage()) {
    made_.push_back(weak_storage(tensor));
  } else {
    made_opaque_.push_back(tensor);
  }
}

void ForwardCalls::check_backward(const EdgeList& roots) const {
  if (nodes_.empty()) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const auto made_in_call = [&](const torch::autograd::Node& node) {
    return node.thread_id() == thread && is_in_range(nodes_, node.sequence_nr());
  };
  visit_nodes(roots, [&](const torch::autograd::Node& node) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !made_in_call(node), "[checkpoint] ", region_->label(), ", node ", node.name(),
        ": expected a backward inside the region's function that passes no SAVE call of the "
        "region, got one that does; a replay, which does not run the call, could not follow. Give "
        "the call the policy RECOMPUTE.");
  });
}

}  // namespace remat
