// SPDX-License-Identifier: BSD-3-Clause

// Combining the parts of a forward.
#include <remat/forward/forward_scope.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/region_policy.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/tensor_layout.h>

#include <remat/engine/storage_bytes.h>
#include <remat/tape/tape_cutter.h>
#include "forward_backwards.h"
#include "forward_calls.h"
#include "forward_ops.h"
#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"

namespace remat {

struct ForwardScope::State {
  State(const Scope& scope, std::shared_ptr<Region> region, CallSettings settings)
      : shared{.scope = scope, .region = std::move(region), .settings = std::move(settings)} {}

  void finish_tape();

  ForwardState shared;
  OutsideWatch outside{shared};
  ForwardSlots slots{shared, outside};
  std::unique_ptr<ForwardCalls> calls;  // Set at the first named call.
  ForwardOps ops{shared, outside, calls};
  ForwardBackwards backwards{shared, calls};
};

/// Stands for a slot in autograd's graph. Hooks own their region, so the region does not own hooks.
class ForwardScope::SlotHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHook(State& state) : region_(state.shared.region), state_(&state) {}
  SlotHook(const SlotHook&) = delete;
  SlotHook& operator=(const SlotHook&) = delete;
  ~SlotHook() override {
    if (slot_) region_->release(*slot_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    if (state_->calls) state_->calls->before_slot(tensor);
    region_ = state_->shared.slot_region();
    slot_ = &state_->slots.add(tensor);
  }
  at::Tensor call_unpack_hook() override { return region_->load(*slot_); }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region_->label(),
        ": expected a backward by autograd's engine, got one by compiled autograd, which takes no "
        "saved-tensor hooks of C++. Run backward outside of it.");
  }

 private:
  std::shared_ptr<Region> region_;
  State* state_;  // Dangling after the forward; used only in pack.
  Slot* slot_ = nullptr;
};

ForwardScope::ForwardScope(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs,
                           CallSettings settings)
    : Scope(Phase::kForward, region->intercept() ? Ops::kSeen : Ops::kAsAround),
      state_(std::make_unique<State>(*this, std::move(region), std::move(settings))) {
  ForwardState& shared = state_->shared;
  set_parts({.ops = &state_->ops, .backwards = &state_->backwards, .run = this});
  set_policy(shared.region->policy());
  shared.region->set_nodes(
      {.thread = at::RecordFunction::currentThreadId(), .begin = at::sequence_number::peek()});
  if (!shared.region->intercept()) return;
  shared.saved = std::make_unique<SavedMemory>();
  for (const at::Tensor& input : inputs) {
    const bool is_whole = input.defined() && has_layout(input) && covers_storage(input);
    const Origin origin = input.defined() ? state_->outside.origin_of(input) : Origin::inside();
    shared.region->outside().add_argument(origin, is_whole);
  }
}

ForwardScope::~ForwardScope() {
  Region& region = *state_->shared.region;
  NodeRange nodes = region.nodes();
  nodes.end = at::sequence_number::peek();
  region.set_nodes(nodes);
  leave();
  drop_unseen(std::move(state_));
}

// Note [Kept logs]: only when the function has returned is it known whether a tape can be recorded.
// Until then logging goes on as if there were no tape, in case the tape is given up and the
// function is replayed. So the log must not depend on what the tape knows of memory. A strict tape
// needs no log, because giving up raises.
void ForwardScope::record(Tape& tape, TrustedOps trusted, bool strict) {
  ForwardState& shared = state_->shared;
  const RegionEntry::Options& state = shared.settings.state;
  shared.recorder = std::make_unique<TapeRecorder>(tape, shared.storages, std::move(trusted),
                                                   state.preserve_rng ? &state.generators : nullptr,
                                                   strict ? shared.region->label() : std::string());
  if (strict) shared.region->ops().break_off();
}

void ForwardScope::cut(const PlannedCuts& cuts, std::shared_ptr<TapeReplayer> whole) {
  ForwardState& shared = state_->shared;
  Tape& tape = whole->writable_tape();
  shared.recorder->cut(std::make_unique<TapeCutter>(
      tape, cuts, shared.region, std::move(whole),
      [state = state_.get()](CallProduct& value, const at::Tensor& tensor, Policy policy) {
        state->slots.keep_cut_value(value, tensor, policy);
      }));
  set_policy(&RegionPolicy::per_segment());
  set_segments(shared.recorder.get());
}

void ForwardScope::finish() {
  const ForwardState& shared = state_->shared;
  if (shared.region->streams().began_without_accelerator()) {
    shared.region->mark_switches_streams();
    if (shared.recorder)
      shared.recorder->give_up("the first use of an accelerator, whose streams were not seen");
  }
  if (shared.recorder || !shared.region->slots().empty()) state_->outside.check_sizes();
  if (shared.saved) state_->slots.check_saved();
  if (state_->calls) state_->calls->finish();
  shared.region->outside().finish();
  if (shared.recorder) state_->finish_tape();
}

// Gives the tape up if the function called is_recomputing() and user hooks keep a result: hooks
// bring a result back only when the function runs again. See Note [What the user has].
void ForwardScope::State::finish_tape() {
  TapeRecorder& recorder = *shared.recorder;
  const auto& products = std::as_const(*shared.region).calls().products();
  const bool brings_back =
      ops.calls_is_recomputing() &&
      std::any_of(products.begin(), products.end(), [](const CallProduct& product) {
        return product.is_kept() && product.is_with_user();
      });
  if (brings_back && !recorder.values().is_strict())
    recorder.give_up("is_recomputing() in a function whose SAVE calls' results hooks keep");
  const HiddenScopes outer(shared.scope);
  const SavedTensorInfoGuard info({.kind = SavedTensorKind::kCheckpointInput,
                                   .region = shared.region->name(),
                                   .call = {},
                                   .context = {}});
  recorder.finish(shared.region->outside());
  if (recorder.gave_up()) {
    outside.check_no_stale_cast();
  } else {
    shared.region->drop_op_log();
  }
}

std::unique_ptr<torch::autograd::SavedVariableHooks> ForwardScope::make_hooks() {
  if (state_->calls && state_->calls->takes_saved()) return state_->calls->make_hooks();
  return std::make_unique<SlotHook>(*state_);
}

const Region& ForwardScope::region() const {
  return *state_->shared.region;
}

TraceScope ForwardScope::trace_scope() const {
  const Region& region = *state_->shared.slot_region();
  return {.region = &region,
          .whole = state_->shared.region.get(),
          .slot = region.slots().size(),
          .kept = region.calls().kept().size(),
          .saved_call = state_->calls ? state_->calls->saved_call() : nullptr};
}

NamedCalls& ForwardScope::named_calls() {
  State& state = *state_;
  if (!state.calls)
    state.calls = std::make_unique<ForwardCalls>(state.shared, state.outside, state.slots);
  return *state.calls;
}

// Note [Nested tapes]: a function replay makes its nested regions anew. Tapes of the new regions
// would have to hold the same tensors as the forward's tapes, which is not guaranteed (casts by
// autocast, tensors that hooks copy). Tapes would also save no time, because the function runs
// again anyway. So nested regions are replayed from tapes only in a region with a tape. If the
// outer tape is given up later, a replay of its function records tapes for the same nested regions
// as the forward did, whatever is known about them by then, because a region saves other tensors
// with a tape than without.
bool ForwardScope::allows_tapes() const {
  const TapeRecorder* const recorder = state_->shared.recorder.get();
  return recorder && !recorder->gave_up();
}

bool ForwardScope::decide_tape(bool wanted) {
  if (!state_->shared.is_saving) state_->shared.region->add_inner_tape(wanted);
  return wanted;
}

}  // namespace remat
