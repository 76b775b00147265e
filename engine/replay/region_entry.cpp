// SPDX-License-Identifier: BSD-3-Clause

// Reading the state at region entry, and dropping what replays do not need.
#include <remat/engine/region_entry.h>

#include <c10/core/TensorImpl.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <remat/engine/first_position.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/region.h>
#include <remat/engine/region_run.h>
#include <remat/engine/scope.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

/// True if saved tensors go to slots of the innermost region, not to one of its SAVE calls.
bool saves_into_slots() {
  Scope* const scope = Scope::current();
  const Scope* const region = scope ? scope->region_scope() : nullptr;
  return region && region->run() && !region->run()->trace_scope().saved_call;
}

/// Note [Slots of arguments]: an outer region's replay may pass two tensors where its forward
/// passed one tensor twice (as an argument of the outer region, and captured). So each argument has
/// a slot in the outer region, used or not.
void add_slot(const at::Tensor& argument) {
  if (argument.is_inference()) return;  // Its first occurrence has no slot either.
  torch::autograd::SavedVariable(variable_data(argument), /*is_output=*/false);
}

}  // namespace

RegionEntry::RegionEntry(c10::ArrayRef<at::Tensor> inputs, const Options& options)
    : thread_state_(ThreadState::read()), state_hooks_(options.state_hooks) {
  inputs_.reserve(inputs.size());
  FirstPosition<const c10::TensorImpl*> seen;
  for (const auto i : c10::irange(inputs.size())) {
    // A tensor that is passed twice is one tensor in the replay, too.
    const size_t position = seen.find(inputs[i].unsafeGetTensorImpl()).value_or(i);
    seen.add(inputs[i].unsafeGetTensorImpl());
    first_position_.push_back(position);
    if (position != i && inputs[i].defined() && saves_into_slots()) add_slot(inputs[i]);
    inputs_.emplace_back(i, position == i ? inputs[i] : at::Tensor());
  }
  if (options.preserve_rng) generators_ = read_generators(options.generators);
  SuspendScopes suspend;
  for (const auto& hook : state_hooks_) user_states_.push_back(hook->snapshot());
}

void RegionEntry::finish_forward(const Region& region) {
  if (!region.draws()) drop_current(generators_);
  for (RegionInput& input : inputs_) input.finish_forward();
  if (region.slots().empty() || region.intercept()) return;
  for (const RegionInput& input : inputs_) input.check_not_written_inside(region.label());
}

void RegionEntry::release_state() noexcept {
  generators_.clear();
  state_hooks_.clear();
  user_states_.clear();
}

}  // namespace remat
