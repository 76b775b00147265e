// SPDX-License-Identifier: BSD-3-Clause

// The hooks that stand for dropped tensors in autograd's graph, and what a forward saves.
#include <remat/tape/forward_scope.h>

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include <remat/tape/hook_count.h>
#include <remat/tape/op_call.h>
#include <remat/tape/saved_tensors_hooks.h>
#include <remat/tape/tensor_layout.h>

#include "forward_calls.h"
#include "graph_walk.h"
#include "host_values.h"
#include "offload_hooks.h"
#include "own_saves.h"
#include "root_views.h"
#include "saved_memory.h"
#include "saved_original.h"
#include "storage_bytes.h"
#include "tape_cutter.h"
#include "tape_recorder.h"
#include "tensor_hash.h"
#include "user_pair.h"

namespace remat {
namespace {

/// True if the user has opened hooks in `scope` or around it.
bool has_hooks_from(const Scope* scope) {
  while (scope && !scope->is_user_hooks()) scope = scope->previous();
  return scope || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

}  // namespace

/// Stands for one slot in autograd's graph. Hooks own their region; the region does not own them.
class SlotHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHook(ForwardScope& scope) : region_(scope.region_), scope_(&scope) {}
  SlotHook(const SlotHook&) = delete;
  SlotHook& operator=(const SlotHook&) = delete;
  ~SlotHook() override {
    if (slot_) region_->release(*slot_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    if (scope_->calls_) scope_->before_slot(tensor);
    region_ = scope_->slot_region();
    slot_ = &scope_->add_slot(tensor);
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
  ForwardScope* scope_;  // dead once the forward has ended; used while packing only
  Slot* slot_ = nullptr;
};

ForwardScope::ForwardScope(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs,
                           CallSettings calls)
    : Scope(Phase::kForward, region->intercept() ? Ops::kSeen : Ops::kAsAround),
      region_(std::move(region)),
      graph_task_(torch::autograd::get_current_graph_task_id()),
      has_hooks_around_(has_hooks_from(previous())),
      call_settings_(std::move(calls)) {
  set_policy(region_->policy());
  region_->set_nodes(
      {.thread = at::RecordFunction::currentThreadId(), .begin = at::sequence_number::peek()});
  if (!region_->intercept()) return;
  saved_ = std::make_unique<SavedMemory>();
  for (const at::Tensor& input : inputs) {
    const bool is_whole = input.defined() && has_layout(input) && covers_storage(input);
    region_->outside().add_argument(input.defined() ? origin_of(input) : Origin::inside(),
                                    is_whole);
  }
}

ForwardScope::~ForwardScope() {
  NodeRange nodes = region_->nodes();
  nodes.end = at::sequence_number::peek();
  region_->set_nodes(nodes);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> ForwardScope::make_hooks() {
  if (calls_ && calls_->takes_saved()) return calls_->make_hooks();
  return std::make_unique<SlotHook>(*this);
}

// Note [Nested tapes]: the replay of a function makes the regions inside anew, each with a tape of
// its own that must hold what the forward's held, which is not sure: weights that autocast has
// cast, tensors that hooks copy. The function runs again in any case. So only in a region with a
// tape are regions inside replayed from tapes. Where the outer tape is given up after that, a
// replay of its function records the same ones as the forward did, whatever has become known of
// them since: a region saves other tensors with a tape than without.
bool ForwardScope::allows_tapes() const {
  return recorder_ && !recorder_->gave_up();
}

bool ForwardScope::decide_tape(bool wanted) {
  if (!(calls_ && calls_->saving())) region_->add_inner_tape(wanted);
  return wanted;
}

// Note [Kept logs]: whether a tape can be written is known when the function has returned. Until
// then the log goes on as if there were none, for the replay of a function whose tape is given up;
// so what the tape knows of memory must not show in it. A strict tape needs none: giving up ends
// it.
void ForwardScope::record(Tape& tape, TrustedOps trusted, bool strict) {
  const FunctionReplayer::Options& state = call_settings_.state;
  recorder_ = std::make_unique<TapeRecorder>(
      tape, storages_,
      TapeRecorder::Options{.trusted = std::move(trusted),
                            .generators = state.preserve_rng ? &state.generators : nullptr,
                            .strict_label = strict ? region_->label() : std::string()});
  if (strict) region_->ops().break_off();
}

void ForwardScope::cut(const Cuts& cuts, std::shared_ptr<TapeReplayer> whole) {
  Tape& tape = whole->writable_tape();
  recorder_->cut(std::make_unique<TapeCutter>(
      tape, cuts, region_, std::move(whole),
      [this](CallProduct& value, const at::Tensor& tensor, Policy policy) {
        keep_cut_value(value, tensor, policy);
      }));
  set_policy(&RegionPolicy::per_segment());
}

void ForwardScope::keep_cut_value(CallProduct& value, const at::Tensor& tensor, Policy policy) {
  TORCH_CHECK_VALUE(
      policy != Policy::kOffload || call_settings_.offload_store || call_settings_.hooks,
      "[checkpoint] ", region_->label(), ", ", slot_region()->label(),
      ": expected CheckpointOptions::offload_store or saved_tensors_hooks (offload_store=..., "
      "saved_tensors_hooks=... in Python) for a "
      "policy that says OFFLOAD, got neither. Set offload_store = "
      "host_memory_store(), or say SAVE.");
  through_hooks({.kind = SavedTensorKind::kCheckpointInput,
                 .region = region_->name(),
                 .call = {},
                 .context = {}},
                tensor, Keep::kInnermostRegion, pair_of_options(policy == Policy::kOffload), [&] {
                  if (value.is_kept()) {
                    value.keep_copy(tensor);
                  } else {
                    value.keep(tensor, {}, 0);
                  }
                });
}

void ForwardScope::through_hooks(const SavedTensorInfo& info, const at::Tensor& tensor, Keep reach,
                                 const UserPair& pair, c10::function_ref<void()> keep) {
  std::optional<ScopesAround> around;
  std::optional<PairScope> alone;
  if (pair) {
    alone.emplace(pair, in_replay());
  } else {
    around.emplace(*this, reach);
  }
  const SavedTensorInfoGuard info_guard(info);
  const SavedOriginalGuard original(tensor, recorder_ && recorder_->op_has_run());
  keep();
}

UserPair ForwardScope::pair_of_options(bool may_store) {
  if (may_store && !offload_hooks_) offload_hooks_ = as_hooks(call_settings_.offload_store);
  return UserPair(may_store && offload_hooks_ ? offload_hooks_ : call_settings_.hooks);
}

bool ForwardScope::gives_to_user(Keep reach, const UserPair& pair) const {
  if (in_replay()) return false;
  if (pair) return true;
  const bool any_python = !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  if (!previous() && !any_python) return false;
  const ScopesAround around(*this, reach);
  Scope* const scope = Scope::current();
  if (scope) return !scope->region_scope();
  return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

const RegionPolicy* ForwardScope::segment_policy() {
  recorder_->enter_segment();
  return slot_region()->policy();
}

void ForwardScope::save_next(Policy policy) {
  recorder_->save_next(policy);
}

void ForwardScope::save_results(const OpCall& call, Policy policy) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) { recorder_->save(tensor, policy); });
}

void ForwardScope::after_data(const at::Tensor& tensor) {
  if (saved_) saved_->after_data(tensor);
}

void ForwardScope::before_set_data(const at::Tensor& tensor) {
  if (saved_) saved_->before_set_data(tensor);
  if (saved_ && calls_) calls_->before_set_data(tensor);
}

void ForwardScope::check_saved() {
  const SavedMemory::Change change = saved_->find_change();
  if (!change.slot) return;
  const std::string where =
      c10::str("[checkpoint] ", region_->label(), ", slot ", change.slot->index);
  TORCH_CHECK_NOT_IMPLEMENTED(change.op, where, " (", change.slot->meta.str(),
                              "): ", kMemoryExchangedInRegion);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, where, " (", change.slot->meta.str(), "), op ", change.op->name(),
      ": expected in-place ops that autograd notices, got one on the memory of a saved tensor by "
      "way of another with versions of its own (made by `.data`): autograd would go on with the "
      "new values in silence, a replay with those that were saved. Write before they are used, or "
      "use a clone().");
}

void ForwardScope::check_outside_sizes() const {
  const OutsideLog& outside = region_->outside();
  for (const auto i : c10::irange(outside.size()))
    outside[i].check_size([&] { return "[checkpoint] " + region_->label(); });
}

void ForwardScope::phase_was_asked() {
  phase_asked_ = true;
  region_->ops().break_off();
}

// See Note [What the user has]: the function is to bring it back, and a tape does not call it.
void ForwardScope::finish() {
  if (recorder_ || !region_->slots().empty()) check_outside_sizes();
  if (saved_) check_saved();
  if (calls_) calls_->finish();
  region_->outside().finish();
  if (!recorder_) return;
  const auto& products = std::as_const(*region_).calls().products();
  const bool brings_back =
      phase_asked_ && std::any_of(products.begin(), products.end(), [](const CallProduct& product) {
        return product.is_kept() && product.is_with_user();
      });
  if (brings_back && !recorder_->is_strict())
    recorder_->give_up("is_recomputing() in a function whose SAVE calls' results hooks keep");
  const OuterScopes outer(*this);
  recorder_->finish(region_->outside());
  if (recorder_->gave_up()) check_no_stale_cast();
  if (!recorder_->gave_up()) region_->drop_op_log();
}

// A custom function may save what no op outside of SAVE calls reads. What a region inside gets as
// an argument its ops read, if anything does.
void ForwardScope::before_slot(const at::Tensor& tensor) {
  calls_->before_slot(tensor);
  if (!recorder_ && packs_region_input()) return;
  calls_->need(tensor);
  // On a tape a copy is the value of its original.
  if (const auto copied = copied_original(tensor); recorder_ && copied && !copied->after_op)
    calls_->need(copied->tensor);
}

/// A replay gives it to the slot, whether an op has read it or not: `tensor`, or what that is a
/// copy of.
void ForwardScope::read_for_slot(const at::Tensor& tensor) {
  const auto copied = copied_original(tensor);
  const at::Tensor& read = copied ? copied->tensor : tensor;
  const Origin origin = memory_of(read) ? storages_.find(memory_of(read)) : Origin::inside();
  if (!origin.is_outside()) return;
  if (!copied || copied->after_op) cover_written(/*op_has_ended=*/false);
  OutsideStorage& outside = region_->outside()[origin.number()];
  const bool is_whole = copied && tensor.nbytes() == read.storage().nbytes();
  read_outside(is_whole ? lay_out(read.storage(), outside.whole()) : read, outside);
}

bool ForwardScope::is_read_outside(const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? storages_.find(memory) : Origin::inside();
  return origin.is_outside() && std::as_const(*region_).outside()[origin.number()].is_read();
}

/// None if remat itself saves it. Of what others save it is the memory that plain code saves.
/// Parameters may be written in a backward under hooks: an optimizer does that, step by step.
std::optional<ForwardMemory> ForwardScope::memory_for_others(const at::Tensor& tensor) const {
  const bool is_own = saves_own() || packs_region_input() || keeps_part();
  if (is_own || !has_layout(tensor)) return std::nullopt;
  const bool is_hooked = has_hooks_around_ || current() != this || has_python_hooks_inside();
  if (is_hooked && is_parameter(tensor)) return std::nullopt;
  return ForwardMemory(tensor, is_hooked);
}

Slot& ForwardScope::add_slot(const at::Tensor& tensor) {
  const auto copied = copied_original(tensor);
  const at::Tensor& original = copied ? copied->tensor : saved_original(tensor);
  const bool is_read = is_read_outside(original);
  // First: what a tape reads for a slot counts as read, also if no op has seen it yet.
  if (recorder_ && !recorder_->gave_up() && !recorder_->in_op()) origin_of(original);
  if (region_->intercept()) read_for_slot(tensor);
  if (recorder_ && copied) {
    recorder_->add_copy_slot(tensor, original, copied->after_op);
  } else if (recorder_) {
    recorder_->add_slot(original);
  }
  Slot& slot = slot_region()->add_slot(tensor);
  slot.log_position = region_->ops().end();
  slot.op = op_;
  // Batch norm in training does not look at the statistics that it writes.
  if (!slot.version.is_written_by_op()) {
    if (auto memory = memory_for_others(tensor))
      slot_region()->add_memory_of_others(slot, *std::move(memory));
  }
  const bool is_input = packs_region_input() && !copied && !original.is_same(tensor);
  const bool is_of_function = !packs_region_input() && !saves_own();
  if (saved_ && (is_input || ((op_ || is_of_function) && !keeps_part()))) {
    // A region inside keeps results of its SAVE calls: the user writes them by their own versions.
    saved_->add(original, packs_call_result() ? original_on_storage(tensor) : original,
                slot_region(), slot, is_input);
  }
  // Not of what remat keeps itself, which may be of another state of the tensor.
  if (!has_layout(tensor) || keeps_part() || !logs()) return slot;
  // An op that a call leaves out is not compared.
  const bool is_given = storages_.is_given(original);
  if (op_ && is_given) slot.layout = given_hash(original);
  if (op_) return slot;
  slot.layout = layout_hash(tensor);
  if (is_given) slot.layout ^= given_hash(original);
  const Origin origin = origin_of(saved_original(tensor));
  slot.origin = region_->outside().logged(origin);
  if (origin.is_outside() && !is_read)
    region_->outside()[origin.number()].note_saved(tensor.storage());
  return slot;
}

const std::shared_ptr<Region>& ForwardScope::slot_region() const {
  const TapeCutter* const cutter = recorder_ ? recorder_->cutter() : nullptr;
  return cutter ? cutter->region() : region_;
}

TraceScope ForwardScope::trace_scope() const {
  const Region& region = *slot_region();
  return {.region = &region,
          .slot = region.slots().size(),
          .kept = region.calls().kept().size(),
          .saved_call = calls_ ? calls_->saved_call() : nullptr};
}

void ForwardScope::before_backward(const EdgeList& roots) {
  region_->mark_inner_backward();
  if (calls_) calls_->check_backward(roots);
  if (recorder_) recorder_->give_up("a backward in the function");
  // First: replays around put other .grads there.
  Scope::before_backward(roots);
  if (!replays_backward()) return;
  region_->add_inner_roots(hash_of_views(roots));
  grads_.clear();
  for (const at::Tensor& tensor : region_->outside().captured()) {
    if (!tensor.is_leaf()) note_grad(tensor);
  }
}

bool ForwardScope::replays_backward() const {
  return region_->intercept() && !(calls_ && calls_->saving()) &&
         torch::autograd::get_current_graph_task_id() == graph_task_;
}

void ForwardScope::before_hooks(size_t count) {
  if (replays_backward()) region_->add_inner_hooks(count);
  Scope::before_hooks(count);
}

void ForwardScope::before_accumulate(const EdgeList& roots) {
  Scope::before_accumulate(roots);  // first, as above
  if (!replays_backward()) return;
  visit_nodes(roots, [&](torch::autograd::Node& node) {
    auto* const accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
    if (!accumulate) return;
    check_leaf(node, accumulate->variable);
    note_grad(accumulate->variable);
  });
}

void ForwardScope::check_leaf(const torch::autograd::Node& node, const at::Tensor& leaf) const {
  if (storages_.find(memory_of(leaf)).is_inside()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      count_accumulated(node) == 0, "[checkpoint] ", region_->label(), ", node ", node.name(),
      ": expected a backward inside the function that reaches no leaf from outside (",
      TensorMeta(leaf).str(),
      ") with hooks that run after its gradient is accumulated, got one that does: they would run "
      "again with the replay. Remove them around the region, or put the backward into a SAVE "
      "call.");
}

void ForwardScope::note_grad(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const at::Tensor& grad = tensor.mutable_grad();
  if (!grad.defined()) grads_made_.insert(impl);
  if (!grads_made_.contains(impl))
    grads_.emplace_back(tensor, GradBefore{impl, grad, SavedVersion(grad)});
}

/// Keeps the .grad of what the backward has given a new one: Note [The .grad of a replay].
void ForwardScope::keep_grads() {
  for (auto& [tensor, before] : std::exchange(grads_, {})) {
    if (tensor.mutable_grad().is_same(before.grad)) {
      if (before.version.changed()) grads_written_.insert(before.tensor);
      continue;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads_written_.contains(before.tensor), "[checkpoint] ", region_->label(),
        ": expected backwards inside the function that add to the .grad of a tensor from outside (",
        TensorMeta(tensor).str(),
        ") all with create_graph or all without, got both: a replay would not find what was there "
        "before. Set that .grad to None before the region, or use autograd.grad.");
    grads_made_.insert(before.tensor);
    region_->add_grad_before(std::move(before));
  }
}

void ForwardScope::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (replays_backward()) {
    keep_grads();
    if (!gradients.empty() && region_->determinism() != Determinism::kNone)
      region_->add_inner_gradients(hash_of(gradients));
  }
  Scope::after_backward(gradients);
}

NamedCalls* ForwardScope::named_calls() {
  if (!calls_) calls_ = std::make_unique<ForwardCalls>(*this, region_, call_settings_);
  return calls_.get();
}

}  // namespace remat
