// SPDX-License-Identifier: BSD-3-Clause

// Opening and closing a region on this thread.
#include <remat/backend/forward_region.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <remat/backend/checkpoint_options.h>
#include <remat/backend/environment_policy.h>
#include <remat/engine/collective_work.h>
#include <remat/engine/current_node.h>
#include <remat/engine/first_position.h>
#include <remat/engine/function_replayer.h>
#include <remat/engine/offload_hooks.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/planned_cuts.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/region_label.h>
#include <remat/engine/region_run.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>
#include <remat/forward/forward_scope.h>
#include <remat/tape/tape_replayer.h>

#include "interception.h"
#include "saved_tensor_engine.h"

namespace remat::detail {
namespace {

std::shared_ptr<const RegionPolicy> policy_of(const CheckpointOptions& options) {
  for (const auto& policy : options.cuts.policies) {
    if (policy) policy->check_ops();
  }
  std::shared_ptr<const RegionPolicy> policy =
      options.policy || !options.intercept ? options.policy : policy_of_environment();
  if (policy) policy->check_ops();
  return policy;
}

bool records(const CheckpointOptions& options) {
  const bool asked = options.replay != ReplayEngine::kFunction || environment_wants_tapes();
  return asked && options.intercept;
}

/// In a replay, returns the stand-ins for the arguments of a nested region, because the forward may
/// have written an argument after the nested region read it.
c10::SmallVector<at::Tensor, 4> stand_ins(c10::ArrayRef<at::Tensor> arguments) {
  c10::SmallVector<at::Tensor, 4> seen(arguments.begin(), arguments.end());
  for (at::Tensor& tensor : seen) {
    if (tensor.defined()) tensor = OpObserver::current_stand_in(tensor);
  }
  return seen;
}

/// Waits for functional collectives that still write an argument, since the arguments' versions are
/// noted next.
void wait_for_collectives(c10::ArrayRef<at::Tensor> arguments) {
  for (const at::Tensor& tensor : arguments) {
    if (tensor.defined()) wait_for_functional_in(tensor);
  }
}

bool has_exact_store(const CheckpointOptions& options) {
  return !options.offload_store || options.offload_store->is_exact();
}

/// True if the store of the options, and those of all regions around, give back the exact bits.
bool is_exact(const CheckpointOptions& options) {
  if (!has_exact_store(options)) return false;
  for (const Scope* around = Scope::current(); around; around = around->previous()) {
    if (around->region()) return around->region()->is_exact();
  }
  return true;
}

CallSettings call_settings(const CheckpointOptions& options) {
  CallSettings calls{
      .implicit_keep = options.implicit_keep,
      .hooks = nullptr,
      .offload_store = options.offload_store,
      .offload_inputs = options.offload_inputs,
      .state = {options.preserve_rng, options.generators, options.state_hooks},
  };
  if (options.saved_tensors_hooks)
    calls.hooks = std::make_shared<const SavedTensorsHooks>(*options.saved_tensors_hooks);
  return calls;
}

/// Keeps the state (generators and state hooks) and `inputs`. The store keeps the inputs if
/// offload_inputs is set, else the options' hooks or, if there are none, the hooks around the
/// region.
std::shared_ptr<RegionEntry> keep_inputs(const CheckpointOptions& options,
                                         c10::ArrayRef<at::Tensor> inputs,
                                         const CallSettings& calls) {
  std::optional<UserHooksScope> hooks;
  if (options.offload_inputs) {
    hooks.emplace(as_input_hooks(options.offload_store), UserHooksScope::Of::kKeeping);
  } else if (calls.hooks) {
    hooks.emplace(calls.hooks, UserHooksScope::Of::kKeeping);
  }
  std::optional<SavedTensorInfoGuard> info;
  if (Scope::current())
    info.emplace(SavedTensorInfo{SavedTensorKind::kCheckpointInput, options.name, /*call=*/{}, {}});
  return std::make_shared<RegionEntry>(inputs, calls.state);
}

/// True while Python traces this thread's calls into a graph (make_fx, torch.export, aot_function).
/// A region would be wrong there, because the graph would have a replay's results as constants.
bool writes_graph() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::PreDispatch)) return true;
  return TorchDispatchModeTLS::any_modes_set() &&
         (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY) ||
          TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FUNCTIONAL));
}

bool is_cut(const CheckpointOptions& options) {
  return options.plan || !options.cuts.empty();
}

bool moves_values(const Cuts& cuts) {
  return cuts.keep && std::any_of(cuts.keep->begin(), cuts.keep->end(), [](const Cuts::Kept& kept) {
           return kept.policy == Policy::kOffload;
         });
}

/// Starts the replay of a region when backward reaches a node that made one of the region's
/// outputs.
class HeadHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit HeadHook(std::weak_ptr<Region> region) : region_(std::move(region)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (const std::shared_ptr<Region> region = region_.lock()) region->replay_for_backward();
    return grads;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {
    const std::shared_ptr<Region> region = region_.lock();
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region ? region->label() : "a freed region",
        ": expected a backward by autograd's engine, got one by compiled autograd, which takes no "
        "hooks of C++. Run backward outside of it.");
  }

 private:
  std::weak_ptr<Region> region_;
};

/// True if the node was made on this thread (each thread numbers its nodes separately) and has the
/// number `sequence_nr` or a later one.
bool is_since(const torch::autograd::Node& node, uint64_t sequence_nr) {
  return node.thread_id() == at::RecordFunction::currentThreadId() &&
         node.sequence_nr() >= sequence_nr;
}

/// Hooks each distinct node behind `outputs` that was made on this thread with sequence number
/// `first_sequence_nr` or later. The hook runs before the node, so the replay is done before any
/// backward inside the region begins. Outputs stay untouched, so that they may be written in place.
/// The nodes do not own the region.
void hook_heads(const std::shared_ptr<Region>& region, c10::ArrayRef<at::Tensor> outputs,
                uint64_t first_sequence_nr) {
  FirstPosition<const torch::autograd::Node*> hooked;
  for (const at::Tensor& output : outputs) {
    torch::autograd::Node* const node = output.defined() ? current_node(output) : nullptr;
    if (!node || !is_since(*node, first_sequence_nr)) continue;
    if (hooked.contains(node)) continue;
    node->add_pre_hook(std::make_unique<HeadHook>(region));
    hooked.add(node);
  }
}

}  // namespace

bool records_regions() {
  return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() && !writes_graph();
}

bool runs_in_segments() {
  Scope* const scope = Scope::current();
  const Scope* const region = scope ? scope->region_scope() : nullptr;
  return region && region->segments();
}

void check_options(const CheckpointOptions& options, const char* where) {
  for (const auto i : c10::irange(options.generators.size())) {
    TORCH_CHECK_VALUE(
        options.generators[i].defined(), "[", where, "] ", region_label(options.name),
        ": generators[", i,
        "]: expected a generator, got an undefined one. Make it with at::make_generator.");
  }
  for (const auto i : c10::irange(options.state_hooks.size())) {
    TORCH_CHECK_VALUE(options.state_hooks[i], "[", where, "] ", region_label(options.name),
                      ": state_hooks[", i, "]: expected a StateHook, got null. Leave it out.");
  }
  TORCH_CHECK_VALUE(
      !options.policy || options.intercept, "[", where, "] ", region_label(options.name),
      ": policy: expected intercept = true, got false: nobody sees the ops that it is for. Set "
      "intercept = true, or leave the policy out.");
  TORCH_CHECK_VALUE(options.replay != ReplayEngine::kTape || options.intercept, "[", where, "] ",
                    region_label(options.name),
                    ": replay: expected intercept = true with kTape (\"tape\"), got false: nobody "
                    "sees the ops that are to be recorded. Set intercept = true, or use kAuto "
                    "(\"auto\") or kFunction (\"function\").");
  TORCH_CHECK_VALUE(!is_cut(options) || options.replay == ReplayEngine::kTape, "[", where, "] ",
                    region_label(options.name),
                    ": cuts: expected replay = kTape (\"tape\"), got another engine: a function "
                    "cannot be replayed in part. Set that engine, or leave the cuts out.");
  TORCH_CHECK_VALUE(!options.offload_inputs || options.offload_store, "[", where, "] ",
                    region_label(options.name),
                    ": offload_inputs: expected offload_store, got none: there is no place for "
                    "them. Set it, or leave offload_inputs out.");
  const std::string place = c10::str("[", where, "] ", region_label(options.name), ": ");
  TORCH_CHECK_VALUE(has_exact_store(options) || options.determinism == Determinism::kNone, place,
                    "determinism: expected kNone (determinism_check=\"none\" in Python) with an "
                    "offload_store that gives back what is not quite what was put, got kMetadata: "
                    "gradients are approximations. Say so, or use another store.");
  TORCH_CHECK_VALUE(!options.plan || options.cuts.empty(), place,
                    "plan: expected no cuts beside it, got some. Leave one out.");
  const Cuts& cuts = options.plan ? *options.plan : options.cuts;
  check_cuts(cuts, place);
  if (moves_values(cuts)) {
    const char* const what = options.plan
                                 ? "plan: expected the offload_store that it was planned with, as "
                                   "it moves some of what it keeps, got none. Set it."
                                 : "cuts.keep: expected offload_store, as some of it is OFFLOAD, "
                                   "got none. Set it: offload_engine(), offload(\"host\") in "
                                   "Python.";
    TORCH_CHECK_VALUE(options.offload_store || options.saved_tensors_hooks, place, what);
    if (options.plan && options.offload_store)
      check_offload(*options.plan, *options.offload_store, place);
  }
  if (options.saved_tensors_hooks) check_saved_tensors_hooks(*options.saved_tensors_hooks, where);
}

ForwardRegion::ForwardRegion(const CheckpointOptions& options,
                             std::unique_ptr<const RegionBody> body,
                             c10::ArrayRef<at::Tensor> arguments)
    : region_(Region::make(Region::Options{options.name, options.determinism, options.early_stop,
                                           options.intercept, options.preserve_rng,
                                           policy_of(options), options.op_site,
                                           /*is_cut=*/is_cut(options),
                                           /*is_unit=*/false, is_exact(options)})),
      first_sequence_nr_(at::sequence_number::peek()) {
  SavedTensorEngine::install();
  if (options.intercept) install_interception();
  c10::SmallVector<at::Tensor, 4> replaced;
  if (Scope::is_in_replay()) replaced = stand_ins(arguments);
  const c10::ArrayRef<at::Tensor> inputs = replaced.empty() ? arguments : replaced;
  CallSettings calls = call_settings(options);
  std::optional<TapeTrust> trust;
  if (records(options)) trust = TapeTrust::of(options.name, *body);
  wait_for_collectives(inputs);
  const std::shared_ptr<RegionEntry> entry = keep_inputs(options, inputs, calls);
  auto function = std::make_unique<FunctionReplayer>(std::move(body), entry);
  const bool strict = options.replay == ReplayEngine::kTape;
  auto advice = trust ? trust->advice() : TapeTrust::Advice{.refused = true, .trusted = {}};
  const bool wants_tape = strict || (!advice.refused && RegionRun::tapes_allowed_here());
  const bool has_tape = RegionRun::decide_tape_here(wants_tape) && trust;
  scope_ = std::make_unique<ForwardScope>(region_, inputs, std::move(calls));
  if (options.plan) scope_->set_plain_calls();
  if (has_tape) {
    auto tape = std::make_shared<TapeReplayer>(std::move(function), entry, *trust);
    scope_->record(tape->writable_tape(), std::move(advice.trusted), strict);
    if (options.plan) {
      scope_->cut(*options.plan, tape);
      const ExpectedTape* const expected = options.plan->expected.get();
      if (expected && expected->on_use) expected->on_use(options.name);
    } else if (!options.cuts.empty()) {
      scope_->cut(PlannedCuts{options.cuts}, tape);
    }
    replayer_ = tape;
  } else {
    replayer_ = std::move(function);
  }
  region_->set_replayer(replayer_);
}

ForwardRegion::~ForwardRegion() = default;

void ForwardRegion::finish(c10::ArrayRef<at::Tensor> outputs) {
  scope_->finish();
  scope_.reset();
  std::exchange(replayer_, nullptr)->finish_forward(*region_);
  region_->set_results(outputs);
  region_->close();
  note_results(outputs);
  if (!region_->slots().empty()) hook_heads(region_, outputs, first_sequence_nr_);
}

}  // namespace remat::detail
