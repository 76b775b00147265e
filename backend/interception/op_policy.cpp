// SPDX-License-Identifier: BSD-3-Clause

// Running an op, keeping its results or leaving it out, as its region's policy says.
#include "op_policy.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/name_scope.h>
#include <remat/backend/named_call_scope.h>
#include <remat/engine/autocast_cache.h>
#include <remat/engine/collective_work.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/named_call.h>
#include <remat/engine/named_calls.h>
#include <remat/engine/region.h>
#include <remat/engine/region_run.h>
#include <remat/engine/scope.h>

namespace remat {
namespace {

/// Marks the places of tensors in CallResults::holder; the tensors are in CallResults::tensors.
const at::Tensor& stand_in() {
  static const at::Tensor& tensor = *new at::Tensor(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(), caffe2::TypeMeta::Make<float>(), std::nullopt));
  return tensor;
}

CallResults take_results(const OpCall& call) {
  CallResults results;
  bool only_tensors = true;
  for (size_t i = 0; i < call.info().return_count(); ++i)
    only_tensors = only_tensors && call.result(i).isTensor();
  const auto add = [&](const at::Tensor& tensor) { results.tensors.push_back(tensor); };
  auto parts = only_tensors ? nullptr : std::make_shared<std::vector<c10::IValue>>();
  for (size_t i = 0; i < call.info().return_count(); ++i) {
    c10::IValue part = call.result(i);
    if (only_tensors) {
      add(part.toTensor());
      continue;
    }
    for_each_tensor(part, add);
    if (is_work(part)) results.work = std::exchange(part, ended_work());  // A Work owns tensors.
    transform_tensors(part, [](const at::Tensor&) { return stand_in(); });
    parts->push_back(std::move(part));
  }
  results.holder = std::move(parts);
  return results;
}

void put_results(const OpInfo& op, const CallResults& results, torch::jit::Stack& stack) {
  torch::jit::drop(stack, op.argument_count());
  if (!results.holder) {
    for (const at::Tensor& tensor : results.tensors) stack.emplace_back(tensor);
    return;
  }
  const auto* next = results.tensors.begin();
  for (c10::IValue part : *static_cast<const std::vector<c10::IValue>*>(results.holder.get())) {
    transform_tensors(part, [&](const at::Tensor&) { return *next++; });
    stack.push_back(std::move(part));
  }
}

std::string numbered(NamedCalls& calls, const std::string& op) {
  const size_t number = calls.count_op(NameScope::is_open() ? NameScope::full_name(op) : op);
  return op + '#' + std::to_string(number);
}

std::optional<Policy> ask(const RegionPolicy& policy, const OpCall& call, const std::string& name,
                          bool is_recompute, bool is_composite) {
  const std::string named = NameScope::is_open() ? NameScope::full_name(name) : name;
  const SuspendScopes suspend;
  return policy.of_op({.op = call, .call = named, .is_recompute = is_recompute}, is_composite);
}

/// True for a view of a tensor without a storage: a sparse tensor or a wrapper. The view allocates
/// no memory, and a replay that leaves the op out cannot make a view of that tensor.
bool is_view_without_storage(const OpCall& call) {
  if (!call.info().is_view()) return false;
  bool any = false;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { any = any || !tensor.has_storage(); });
  return any;
}

/// True if the op writes given memory, which got its values without an op. Such memory may move
/// without an op (share_memory_()), so a skipped call would write the wrong memory. False for
/// collectives, which all ranks must treat alike.
bool writes_given(const OpCall& call, const NamedCalls& calls) {
  if (!call.info().writes() || call.info().is_communication()) return false;
  bool any = false;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    any = any || (call.writes_argument(i) && calls.is_given(tensor));
  });
  return any;
}

/// Does what run_by_policy() does, in a region with cuts. There the tape keeps the values of the
/// results that the policy saves, and no named call is made.
bool run_in_segment(StaticDecision& decision, const OpInfo& op, bool is_composite,
                    torch::jit::Stack& stack, c10::function_ref<void()> run) {
  Scope* const scope = Scope::innermost_with_calls();
  SegmentPolicies* const segments = scope ? scope->segments() : nullptr;
  const RegionPolicy* const policy = segments ? segments->enter(op) : nullptr;
  if (!policy) return false;
  const OpCall call(op, stack);
  if (is_cacheable_cast(call)) return false;
  NamedCalls* const calls = policy->is_static() ? nullptr : scope->named_calls();
  const std::optional<Policy> said =
      calls ? ask(*policy, call, numbered(*calls, op.name()), /*is_recompute=*/false, is_composite)
            : decision.get(*policy, op, is_composite);
  if (!said || *said == Policy::kRecompute) return false;
  if (!is_composite) segments->save_next(*said);
  run();
  if (is_composite) segments->save_results(call, *said);
  return true;
}

void run_as_call(const NamedCall& named, const OpCall& call, torch::jit::Stack& stack,
                 c10::function_ref<void()> run) {
  c10::SmallVector<at::Tensor, 8> tensors;
  for_each_argument_tensor(call,
                           [&](size_t, const at::Tensor& tensor) { tensors.push_back(tensor); });
  detail::NamedCallScope scope(named, tensors);
  if (scope.is_skipped()) return put_results(call.info(), scope.results(), stack);
  run();
  scope.finish(take_results(call));
}

/// The policy for collectives in a region without one: SAVE.
const RegionPolicy& default_policy() {
  static const RegionPolicy& policy = *new RegionPolicy(PolicyTable());
  return policy;
}

/// True if every region around observes ops, and so may leave calls out.
bool all_regions_see_ops() {
  for (const Scope* scope = Scope::current(); scope; scope = scope->next_to_see_ops()) {
    const Region* const region = scope->region();
    if (region && !region->intercept()) return false;
  }
  return true;
}

}  // namespace

std::optional<Policy> StaticDecision::get(const RegionPolicy& policy, const OpInfo& op,
                                          bool is_composite) {
  // last_ holds the policy's id, whether the op is composite, and the answer.
  constexpr int kAnswerBits = 3;
  constexpr uint64_t kNone = 7;
  const uint64_t key = policy.id() * 2 + (is_composite ? 1 : 0);
  const uint64_t last = last_.load(std::memory_order_relaxed);
  uint64_t answer = last & kNone;
  if (last >> kAnswerBits != key) {
    const std::optional<Policy> said = policy.of_op(op, is_composite);
    answer = said ? static_cast<uint64_t>(*said) : kNone;
    last_.store(key << kAnswerBits | answer, std::memory_order_relaxed);
  }
  return answer == kNone ? std::nullopt : std::optional(static_cast<Policy>(answer));
}

bool run_by_policy(const RegionPolicy& policy, StaticDecision& decision, const OpInfo& op,
                   bool is_composite, torch::jit::Stack& stack, c10::function_ref<void()> run) {
  // squeeze_ and the like change the function's tensor itself, which a skipped call could not do.
  if (op.changes_metadata()) return false;
  // Uninitialised memory has no values to keep, and if its op were skipped, the op that fills the
  // memory would write into kept memory. lift() returns its argument, whose values must be logged.
  if (op.is_uninitialised() || op.is_lift()) return false;
  if (policy.is_per_segment() && !op.is_communication())
    return run_in_segment(decision, op, is_composite, stack, run);
  std::optional<Policy> said;
  if (policy.is_static()) {
    said = decision.get(policy, op, is_composite);
    if (!said || *said == Policy::kRecompute) return false;
  }
  Scope* const scope = Scope::innermost_with_calls();
  NamedCalls* const calls = scope ? scope->named_calls() : nullptr;
  if (!calls || !calls->takes_ops()) return false;
  const OpCall call(op, stack);
  if (is_cacheable_cast(call) || is_view_without_storage(call) || writes_given(call, *calls))
    return false;
  NamedCall named{.name = numbered(*calls, op.name()), .saved_names = {}, .is_op = true};
  if (!policy.is_static() && !calls->knows_next_op())
    said = ask(policy, call, named.name, calls->is_replay(), is_composite);
  if (!said || *said == Policy::kRecompute) return false;
  named.policy = *said;
  if (op.is_communication() && all_regions_see_ops()) {
    named.keep = Keep::kAllRegions;
    named.collective = NameScope::is_open() ? NameScope::full_name(op.name()) : op.name();
  }
  run_as_call(named, call, stack, run);
  return true;
}

bool run_communication(StaticDecision& decision, const OpInfo& op, torch::jit::Stack& stack,
                       c10::function_ref<void()> run) {
  const Scope* const scope = Scope::innermost_with_calls();
  const Region* const region = scope ? scope->region() : nullptr;
  if (!region || !region->intercept()) return false;
  return run_by_policy(default_policy(), decision, op, /*is_composite=*/false, stack, run);
}

}  // namespace remat
