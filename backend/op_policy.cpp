// SPDX-License-Identifier: BSD-3-Clause

// An op as a named call: its tensors off the stack, and back onto it.
#include "op_policy.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/name_scope.h>
#include <remat/backend/named_call_scope.h>
#include <remat/tape/autocast_cache.h>
#include <remat/tape/named_call.h>
#include <remat/tape/saved_tensor_frame.h>

namespace remat {
namespace {

enum class Shape : uint8_t { kTensor, kList, kOther };

Shape shape_of(const c10::IValue& value) {
  if (value.isTensor()) return Shape::kTensor;
  return value.isTensorList() ? Shape::kList : Shape::kOther;
}

/// One result of an op, without its tensors.
struct Result {
  Shape shape;
  size_t count;       // of a list
  c10::IValue value;  // of what is neither a tensor nor a list of tensors
};
using Results = std::vector<Result>;

CallResults take_results(const OpCall& call) {
  CallResults results;
  Results parts;
  bool only_tensors = true;
  for (size_t i = 0; i < call.info().return_count(); ++i) {
    const c10::IValue& value = call.result(i);
    const Shape shape = shape_of(value);
    only_tensors = only_tensors && shape == Shape::kTensor;
    if (shape == Shape::kTensor) {
      results.tensors.push_back(value.toTensor());
      parts.push_back({shape, 1, {}});
    } else if (shape == Shape::kList) {
      const std::vector<at::Tensor> list = value.toTensorVector();
      results.tensors.append(list.begin(), list.end());
      parts.push_back({shape, list.size(), {}});
    } else {
      parts.push_back({shape, 0, value});
    }
  }
  if (!only_tensors) results.holder = std::make_shared<const Results>(std::move(parts));
  return results;
}

void put_results(const OpInfo& op, const CallResults& results, torch::jit::Stack& stack) {
  torch::jit::drop(stack, op.argument_count());
  if (!results.holder) {
    for (const at::Tensor& tensor : results.tensors) stack.emplace_back(tensor);
    return;
  }
  const auto* next = results.tensors.begin();
  for (const Result& part : *static_cast<const Results*>(results.holder.get())) {
    if (part.shape == Shape::kTensor) {
      stack.emplace_back(*next++);
    } else if (part.shape == Shape::kList) {
      stack.emplace_back(std::vector<at::Tensor>(next, next + part.count));
      next += part.count;
    } else {
      stack.push_back(part.value);
    }
  }
}

std::string numbered(NamedCalls& calls, const std::string& op) {
  const size_t number = calls.count_op(NameScope::is_open() ? NameScope::full_name(op) : op);
  return op + '#' + std::to_string(number);
}

std::optional<Policy> ask(const RegionPolicy& policy, const OpCall& call, const std::string& name,
                          bool is_recompute, bool is_composite) {
  const std::string slot = NameScope::is_open() ? NameScope::full_name(name) : name;
  const SuspendFrames suspend;
  return policy.of_op({.op = call, .slot = slot, .is_recompute = is_recompute}, is_composite);
}

/// As run_by_policy(), in a region with cuts: what is saved is a value of the tape, not a call.
bool run_in_segment(StaticDecision& decision, const OpInfo& op, bool is_composite,
                    torch::jit::Stack& stack, c10::function_ref<void()> run) {
  SavedTensorFrame* const frame = SavedTensorFrame::innermost_with_calls();
  const RegionPolicy* const policy = frame ? frame->segment_policy() : nullptr;
  if (!policy) return false;
  const OpCall call(op, stack);
  if (is_cacheable_cast(call)) return false;
  NamedCalls* const calls = policy->is_static() ? nullptr : frame->named_calls();
  const std::optional<Policy> said =
      calls ? ask(*policy, call, numbered(*calls, op.name()), /*is_recompute=*/false, is_composite)
            : decision.get(*policy, op, is_composite);
  if (!said || *said == Policy::kRecompute) return false;
  if (!is_composite) frame->save_next(*said);
  run();
  if (is_composite) frame->save_results(call, *said);
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

}  // namespace

std::optional<Policy> StaticDecision::get(const RegionPolicy& policy, const OpInfo& op,
                                          bool is_composite) {
  // Number of the policy, then which kind of op, then the answer.
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
  // squeeze_ and its kind change the tensor that the function has, which a skipped call could not.
  if (op.changes_metadata()) return false;
  if (policy.is_per_segment()) return run_in_segment(decision, op, is_composite, stack, run);
  std::optional<Policy> said;
  if (policy.is_static()) {
    said = decision.get(policy, op, is_composite);
    if (!said || *said == Policy::kRecompute) return false;
  }
  SavedTensorFrame* const frame = SavedTensorFrame::innermost_with_calls();
  NamedCalls* const calls = frame ? frame->named_calls() : nullptr;
  if (!calls || !calls->takes_ops()) return false;
  const OpCall call(op, stack);
  if (is_cacheable_cast(call)) return false;
  NamedCall named{.name = numbered(*calls, op.name()), .saved_names = {}, .is_op = true};
  if (!policy.is_static()) said = ask(policy, call, named.name, calls->is_replay(), is_composite);
  if (!said || *said == Policy::kRecompute) return false;
  named.policy = *said;
  run_as_call(named, call, stack, run);
  return true;
}

}  // namespace remat
