// SPDX-License-Identifier: BSD-3-Clause

// Handling the ops of a forward.
#include "forward_ops.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/engine/autocast_cache.h>
#include <remat/engine/data_hooks.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_writer.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/write_kind.h>

namespace remat {
namespace {

/// Throws if torch.func differentiates `tensor`, because that graph is no part of the region's
/// graph.
void check_no_transform(const OpCall& call, const at::Tensor& tensor, const Region& region) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper), "[checkpoint] ",
      region.label(), ", op ", call.info().name(),
      ": expected no gradient transform of torch.func in the function, got a tensor of one (grad, "
      "vjp, jvp, jacrev, ...). Put the transform into a SAVE call, or use torch.autograd.grad.");
}

/// Throws if an op gets a generator whose state a replay would not restore.
void check_generators(const OpCall& call, c10::ArrayRef<at::Generator> named,
                      const Region& region) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (!call.argument(i).isGenerator()) continue;
    const at::Generator generator = call.argument(i).toGenerator();
    const bool is_known = !generator.defined() ||
                          std::find(named.begin(), named.end(), generator) != named.end() ||
                          generator == at::globalContext().defaultGenerator(generator.device());
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_known, "[checkpoint] ", region.label(), ", op ", call.info().name(),
        ": expected a default generator or one of CheckpointOptions::generators, got another one, "
        "from which the replay would draw other numbers. Add it to generators, or set "
        "preserve_rng = false (preserve_rng_state=False in Python).");
  }
}

}  // namespace

void ForwardOps::before_op(OpCall& call, bool logged) {
  if (!region_.intercept()) return;
  const OpInfo& info = call.info();
  if (C10_UNLIKELY(cast_leaf_.defined())) after_cast_threw();
  state_.op = &info;
  made_by_handler_.clear();
  if (C10_UNLIKELY(region_.streams().changed())) note_streams(call);
  if (C10_UNLIKELY(region_.switches_streams())) note_stream_use(call);
  outside_.begin_op();
  if (C10_UNLIKELY(info.is_unshard())) outside_.refuse_unshard(info);
  casts_weight_ = is_cacheable_cast(call);
  if (C10_UNLIKELY(casts_weight_)) region_.mark_casts_weights();
  if (C10_UNLIKELY(info.gives_other_versions())) note_other_versions_of(call);
  if (info.writes()) note_saved_writes(call);
  if (state_.is_saving) return calls_->saved_ops().before_op(call);
  if (calls_) calls_->go_on();
  if (C10_UNLIKELY(info.facts().has(OpFact::kMakesTangents))) state_.has_tangents = true;
  if (call.may_draw()) before_draw(call);
  if (C10_UNLIKELY(info.is_communication())) region_.mark_communicates();
  made_ = origin_of_results(info);
  is_written_down_ = logged && state_.logs() && !casts_weight_ && is_written_down(call);
  // Settings do not matter to views, because views compute nothing.
  const bool is_compared = (is_written_down_ || state_.recorder) && !info.is_plain_view();
  const uint64_t settings = is_compared ? region_.settings().changed(call) : 0;
  write_down(call, settings);
  outside_.before_writes(call);
  if (state_.recorder) record(call, settings);
}

void ForwardOps::write_down(const OpCall& call, uint64_t settings) {
  SeenTensors seen;
  for (const OpTensor& entry : call.tensors()) {
    const Origin origin = look(call, entry.argument, *entry.tensor);
    state_.storages.note_write(call, entry.argument, *entry.tensor, origin);
    seen.push_back({.tensor = entry.tensor, .origin = origin});
  }
  OpWords* const words = is_written_down_ ? &region_.ops().writer() : nullptr;
  write_op(words, call, seen, settings, region_, state_.storages);
  if (words) state_.count_written_down();
}

/// Returns the origin of argument `argument`, and reports the argument to the forward's parts.
Origin ForwardOps::look(const OpCall& call, size_t argument, const at::Tensor& tensor) {
  check_no_transform(call, tensor, region_);
  const Origin origin = outside_.origin_of(tensor);
  if (calls_) calls_->before_use(call, argument, tensor, origin);
  if (is_of_python_class(tensor)) {
    handled_ = &call;
    state_.handled_slot = region_.slots().size();
    if (calls_ && call.info().reads_data()) calls_->read_inside(call, tensor);
    outside_.see_wrapper(call, argument, tensor, origin);
  }
  if (origin.is_outside()) outside_.see(call, argument, tensor, origin);
  if (C10_UNLIKELY(casts_weight_) && argument == 0) {
    made_ = Origin::cast_of(origin, layout_hash(tensor));
    cast_leaf_ = tensor;
  }
  outside_.check_cast(tensor, origin);
  return origin;
}

void ForwardOps::record(const OpCall& call, uint64_t settings) {
  if (C10_UNLIKELY(state_.scope.opens_mode())) state_.recorder->note_mode();
  if (C10_UNLIKELY(settings != 0)) state_.recorder->note_settings(call);
  if (C10_UNLIKELY(is_of_python_class(call))) return state_.recorder->begin_handled(call);
  state_.recorder->before_op(call);
}

void ForwardOps::note_streams(const OpCall& call) {
  region_.mark_switches_streams();
  if (state_.recorder) state_.recorder->note_streams(call);
}

// Marks generators before the draw and not at the region's end, because a generator may be put back
// after the draw (torch.random.fork_rng).
void ForwardOps::before_draw(const OpCall& call) {
  const RegionEntry::Options& state = state_.settings.state;
  if (!state.preserve_rng) return;
  check_generators(call, state.generators, region_);
  if (!region_.draws()) marks_ = mark_generators(state.generators);
}

void ForwardOps::after_draw() {
  const bool drew = std::any_of(marks_.begin(), marks_.end(),
                                [](const GeneratorMark& mark) { return mark.has_moved(); });
  if (drew) region_.mark_draws();
  marks_.clear();
}

// See Note [Writes by way of data].
void ForwardOps::note_saved_writes(const OpCall& call) {
  if (accumulates_grad()) return;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (!call.writes_argument(i)) return;
    const void* const memory = memory_of(tensor);
    if (memory && state_.storages.find(memory).is_outside())
      state_.saved->before_outside_write(tensor);
    state_.saved->before_write(tensor, call.info());
  });
}

void ForwardOps::note_other_versions_of(const OpCall& call) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (call.argument(i).isStorage()) {
      const c10::Storage storage = call.argument(i).toStorage();
      note_other_versions(storage.unsafeGetStorageImpl());
      state_.saved->after_data(storage);
    }
  }
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i) || !memory_of(tensor)) return;
    note_other_versions(tensor.storage().unsafeGetStorageImpl());
    state_.saved->after_data(tensor);
  });
}

void ForwardOps::after_op(OpCall& call) {
  if (!region_.intercept()) return;
  state_.op = nullptr;
  state_.saved->after_writes();
  if (state_.is_saving) return calls_->saved_ops().after_op(call);
  outside_.cover_written(/*op_has_ended=*/true);
  if (!marks_.empty()) after_draw();
  end_handled(call);
  if (state_.recorder) state_.recorder->after_op(call);
  if (C10_UNLIKELY(cast_leaf_.defined())) after_cast(call);
  if (C10_UNLIKELY(call.info().makes_objects())) {
    for (const auto i : c10::irange(call.info().return_count()))
      region_.ops().writer().note_made(call.result(i));
  }
  size_t number = 0;
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    if (outside_.see_result(tensor)) return;
    state_.storages.enter_result(
        tensor, is_written_down_ ? Origin::made(state_.written_down - 1, number++) : made_);
  });
}

// Note [Views that nobody needs to see]: a view is not logged, makes no memory and reads no data.
// So a region need not see a view of memory whose origin it knows, with these exceptions: a SAVE
// call has its own ops, after a named call the next op ends what the call left open, a planned step
// counts all ops, a tape refuses any op on another stream, a cast may be stale, and a tensor from
// outside is noted when the first op gets it.
bool ForwardOps::skips_view(const at::Tensor& viewed) const {
  if (!region_.intercept()) return true;
  if (calls_) return false;
  if (state_.recorder && (state_.recorder->cutter() || region_.streams().changed())) return false;
  const void* const memory = memory_of(viewed);
  if (!memory || !has_layout(viewed)) return false;
  const Origin origin = state_.storages.find(memory);
  if (origin.is_inside()) return !origin.is_cast();
  return origin.is_outside() && outside_.knows(viewed, origin);
}

/// Ends the handled op. Does nothing if `call` is another op, such as one of a SAVE call in a
/// handler.
void ForwardOps::end_handled(const OpCall& call) {
  if (C10_LIKELY(handled_ != &call)) return;
  handled_ = nullptr;
  state_.handled_slot = ForwardState::kNoOp;
  if (state_.recorder) state_.recorder->slots().end_handled();
}

void ForwardOps::op_threw(const OpCall& call) {
  if (handled_ != &call) return;
  handled_ = nullptr;
  state_.handled_slot = ForwardState::kNoOp;
  if (state_.recorder) state_.recorder->slots().drop_handled();
}

// The log does not have this op, because a replay of the function calls the handler again. The tape
// has this op instead of the handled op: Note [Wrappers on a tape].
void ForwardOps::before_part(const OpCall& call) {
  if (!region_.intercept() || state_.is_saving) return;
  const OpInfo& info = call.info();
  if (C10_UNLIKELY(info.is_communication())) region_.mark_communicates();
  for (const OpTensor& entry : call.tensors()) {
    if (entry.memory && call.writes_argument(entry.argument)) adopt_unknown(call, entry);
    const Origin origin = outside_.origin_of(*entry.tensor);
    if (calls_) calls_->before_use(call, entry.argument, *entry.tensor, origin);
    if (origin.is_outside() && info.reads_data())
      outside_.read(*entry.tensor, region_.outside()[origin.number()]);
  }
  if (state_.recorder && !is_of_python_class(call)) state_.recorder->before_op(call);
}

/// Factories in handlers are not observed, so unknown memory counts as made by the handler that
/// writes it first. check_handler_write() takes memory that outlives the op as older than the op.
void ForwardOps::adopt_unknown(const OpCall& call, const OpTensor& written) {
  const at::Tensor& tensor = *written.tensor;
  if (!state_.storages.find(written.memory).is_unknown()) return;
  made_by_handler_.push_back(written.memory);
  if (state_.recorder && write_kind(call, written.argument) == WriteKind::kWhole)
    state_.recorder->values().adopt_memory(tensor);
  else if (state_.recorder)
    state_.recorder->values().adopt(tensor);
  state_.storages.enter_result(tensor);
}

void ForwardOps::after_part(const OpCall& call) {
  if (!region_.intercept() || state_.is_saving) return;
  if (state_.recorder) state_.recorder->after_op(call);
  for_each_result_tensor(call,
                         [&](const at::Tensor& tensor) { state_.storages.enter_result(tensor); });
}

void ForwardOps::after_cast(const OpCall& call) {
  const at::Tensor leaf = std::exchange(cast_leaf_, {});
  if (call.result(0).isTensor()) note_autocast(call.result(0).toTensor(), leaf);
}

// Call it first in the next op, because the leaf's destructor may run ops.
void ForwardOps::after_cast_threw() {
  drop_unseen(std::exchange(cast_leaf_, {}));
}

void ForwardOps::check_handler_write(const OpInfo& info, const std::string& op,
                                     const c10::Storage& storage) const {
  const void* const memory = storage.unsafeGetStorageImpl();
  const Origin origin = state_.storages.find(memory);
  const bool is_inside =
      origin.is_inside() &&
      std::find(made_by_handler_.begin(), made_by_handler_.end(), memory) == made_by_handler_.end();
  const bool is_made_again = is_inside || origin.is_in_call() || origin.is_product();
  if (!region_.intercept() || state_.is_saving || is_made_again) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected a __torch_dispatch__ (of a tensor subclass, or of a mode that the function "
      "opens) "
      "that writes what it makes, got one that writes a tensor from outside by ",
      op, " (", storage.nbytes(),
      " bytes), which the replay in backward would do again. Write it outside of the region, or "
      "put "
      "the op into a SAVE call.");
}

void ForwardOps::adopt_part(const at::Tensor& tensor) {
  if (!state_.recorder || !state_.recorder->in_op()) return adopt(tensor);
  state_.storages.enter_result(tensor);  // The recorder records the whole op.
}

void ForwardOps::adopt(const at::Tensor& tensor) {
  if (!region_.intercept()) return;
  if (state_.is_saving) return calls_->saved_ops().adopt(tensor);
  if (state_.recorder) state_.recorder->values().adopt(tensor);
  state_.storages.enter_result(tensor);
}

void ForwardOps::after_data(const at::Tensor& tensor) {
  if (state_.saved) state_.saved->after_data(tensor);
}

void ForwardOps::before_set_data(const at::Tensor& tensor) {
  if (!state_.saved) return;
  state_.saved->before_set_data(tensor);
  if (calls_) calls_->before_set_data(tensor);
}

void ForwardOps::phase_was_asked() {
  calls_is_recomputing_ = true;
  region_.ops().break_off();
}

}  // namespace remat
