// SPDX-License-Identifier: BSD-3-Clause

// Handling tensors that autograd saves in a forward.
#include "forward_slots.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include <remat/engine/collective_work.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/offload_hooks.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/op_writer.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_layout.h>

namespace remat {
namespace {

/// True if the user has opened saved-tensor hooks around `scope`.
bool has_hooks_around(const Scope& scope) {
  const Scope* outer = scope.previous();
  while (outer && !outer->user_hooks()) outer = outer->previous();
  return outer || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

}  // namespace

ForwardSlots::ForwardSlots(ForwardState& state, OutsideWatch& outside)
    : state_(state),
      region_(*state.region),
      outside_(outside),
      has_hooks_around_(has_hooks_around(state.scope)) {}

Slot& ForwardSlots::add(const at::Tensor& tensor) {
  // Wait for functional collectives, because later writes to inner tensors would change versions.
  if (C10_UNLIKELY(is_of_python_class(tensor))) wait_for_functional_in(tensor);
  const auto copied = copied_original(tensor);
  const at::Tensor& original = copied ? copied->tensor : saved_original(tensor);
  const bool was_read = outside_.is_read(original);
  TapeRecorder* const recorder = state_.recorder.get();
  // If a custom function saves its argument, use the stand-in that an outer replay hands to ops.
  at::Tensor stand_in;
  if (region_.intercept() && !copied && state_.scope.in_replay())
    stand_in = OpObserver::as_seen(state_.scope, original);
  const at::Tensor& seen = stand_in.defined() ? stand_in : original;
  // First, so that read_for_slot() knows a tensor from outside that no op has used: a tape reads
  // the tensor for the slot.
  if (recorder && !recorder->gave_up() && !recorder->in_op()) outside_.origin_of(seen);
  if (region_.intercept()) outside_.read_for_slot(stand_in.defined() ? seen : tensor);
  if (recorder && copied) {
    recorder->slots().add_copy(tensor, original, copied->after_op);
  } else if (recorder) {
    recorder->slots().add(seen);
  }
  Slot& slot = state_.slot_region()->add_slot(tensor);
  slot.log_position = region_.ops().end();
  slot.op = state_.op;
  note_memory(tensor, original, copied.has_value(), slot);
  // Skip parts that remat itself keeps, because they may show another state of the tensor.
  if (has_layout(tensor) && !keeps_part() && state_.logs())
    write_down(tensor, original, was_read, slot);
  return slot;
}

void ForwardSlots::note_memory(const at::Tensor& tensor, const at::Tensor& original, bool is_copy,
                               Slot& slot) {
  // Skip what the op writes: batch norm in training saves its statistics, but does not read them.
  if (!slot.version.is_written_by_op()) {
    if (auto memory = memory_for_others(tensor))
      state_.slot_region()->add_memory_of_others(slot, *std::move(memory));
  }
  const bool is_input = packs_region_input() && !is_copy && !original.is_same(tensor);
  const bool is_of_function = !packs_region_input() && !saves_own();
  if (state_.saved && (is_input || ((state_.op || is_of_function) && !keeps_part()))) {
    // If the tensor is a SAVE call's result that a nested region keeps, the user's writes change
    // the version of the original on that storage.
    state_.saved->add(original, packs_call_result() ? original_on_storage(tensor) : original,
                      state_.slot_region(), slot, is_input);
  }
}

void ForwardSlots::write_down(const at::Tensor& tensor, const at::Tensor& original, bool was_read,
                              Slot& slot) {
  const bool is_given = state_.storages.is_given(original);
  // Noted in the slot, too, because a replay that leaves out the op does not compare the op.
  if (state_.op && is_given) slot.layout = given_hash(original);
  if (state_.op) return;
  slot.layout = layout_hash(tensor);
  if (is_given) slot.layout ^= given_hash(original);
  const Origin origin = outside_.origin_of(saved_original(tensor));
  slot.origin = region_.outside().logged(origin);
  if (origin.is_outside() && !was_read)
    region_.outside()[origin.number()].note_saved(tensor.storage());
}

// Skips parameters under hooks, because an optimizer may write each parameter during the backward.
std::optional<ForwardMemory> ForwardSlots::memory_for_others(const at::Tensor& tensor) const {
  const bool is_own = saves_own() || packs_region_input() || keeps_part();
  if (is_own || !has_layout(tensor)) return std::nullopt;
  const bool is_hooked = has_hooks_around_ || Scope::current() != &state_.scope ||
                         state_.scope.has_python_hooks_inside();
  if (is_hooked && is_parameter(tensor)) return std::nullopt;
  return ForwardMemory(tensor, is_hooked);
}

void ForwardSlots::keep_cut_value(CallProduct& value, const at::Tensor& tensor, Policy policy) {
  TORCH_CHECK_VALUE(
      policy != Policy::kOffload || state_.settings.offload_store || state_.settings.hooks,
      "[checkpoint] ", region_.label(), ", ", state_.slot_region()->label(),
      ": expected CheckpointOptions::offload_store or saved_tensors_hooks (offload_store=..., "
      "saved_tensors_hooks=... in Python) for a "
      "policy that says OFFLOAD, got neither. Set offload_store = "
      "host_memory_store(), or say SAVE.");
  const SavedTensorInfo info{.kind = SavedTensorKind::kCheckpointInput,
                             .region = region_.name(),
                             .call = {},
                             .context = {}};
  keep_through(pair_of_options(policy == Policy::kOffload), info, tensor, Keep::kInnermostRegion,
               [&] {
                 if (value.is_kept()) {
                   value.keep_copy(tensor);
                 } else {
                   value.keep(tensor, {}, 0);
                 }
               });
}

void ForwardSlots::keep_through(const UserPair& pair, const SavedTensorInfo& info,
                                const at::Tensor& tensor, Keep reach,
                                c10::function_ref<void()> keep) {
  std::optional<HiddenScopes> around;
  std::optional<PairScope> alone;
  if (pair) {
    alone.emplace(pair, state_.scope.in_replay());
  } else {
    around.emplace(state_.scope, reach);
  }
  const SavedTensorInfoGuard info_guard(info);
  const SavedOriginalGuard original(tensor, state_.recorder && state_.recorder->op_has_run());
  keep();
}

UserPair ForwardSlots::pair_of_options(bool may_store) {
  const CallSettings& settings = state_.settings;
  if (may_store && !offload_hooks_) offload_hooks_ = as_hooks(settings.offload_store);
  return UserPair(may_store && offload_hooks_ ? offload_hooks_ : settings.hooks);
}

bool ForwardSlots::is_of_options(const UserPair& pair) const {
  const SavedTensorsHooks* const hooks = pair.hooks();
  return hooks && (hooks == offload_hooks_.get() || hooks == state_.settings.hooks.get());
}

bool ForwardSlots::gives_to_user(Keep reach, const UserPair& pair) const {
  if (state_.scope.in_replay()) return false;
  if (pair) return true;
  const bool any_python = !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  if (!state_.scope.previous() && !any_python) return false;
  const HiddenScopes around(state_.scope, reach);
  Scope* const scope = Scope::current();
  if (scope) return !scope->region_scope();
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

void ForwardSlots::check_saved() const {
  const auto [changed, op] = state_.saved->find_change();
  if (!changed) return;
  const std::string where = c10::str("[checkpoint] ", region_.label(), ", slot ", changed->index);
  TORCH_CHECK_NOT_IMPLEMENTED(op, where, " (", changed->meta.str(),
                              "): ", kMemoryExchangedInRegion);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, where, " (", changed->meta.str(), "), op ", op->name(),
      ": expected in-place ops that autograd notices, got one on the memory of a saved tensor by "
      "way of another with versions of its own (made by `.data`): autograd would go on with the "
      "new values in silence, a replay with those that were saved. Write before they are used, or "
      "use a clone().");
}

}  // namespace remat
