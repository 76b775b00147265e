// SPDX-License-Identifier: BSD-3-Clause

// Showing ops to scopes, and running them unseen.
#include "intercept_kernel.h"

#include <deque>
#include <mutex>
#include <unordered_map>

#include <remat/tape/interception_bits.h>
#include <remat/tape/saved_tensor_frame.h>

namespace remat {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

c10::BackendComponent backend = c10::BackendComponent::InvalidBit;

/// One per op and schema, never freed: logs of regions refer to them.
const OpInfo& op_info(const OperatorHandle& op) {
  static std::mutex& mutex = *new std::mutex;
  static auto& infos = *new std::unordered_map<c10::OperatorName, std::deque<OpInfo>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::deque<OpInfo>& all = infos[op.operator_name()];
  // An op that was taken away and defined anew may have another schema.
  if (all.empty() || !all.back().describes(op)) all.emplace_back(op);
  return all.back();
}

void run_unseen(const OperatorHandle& op, DispatchKeySet below, Stack* stack) {
  const InterceptionOff off;
  op.redispatchBoxed(below, stack);
}

void run_leaf(const OperatorHandle& op, const OpInfo& info, DispatchKeySet below, Stack* stack,
              bool logged) {
  OpCall call(info, *stack);
  // What it lifts was made without an op, as by an index assignment of a number (x[mask] = 0.5),
  // and nobody else has it.
  if (!logged && info.is_lift()) for_each_tensor(call.argument(0), &SavedTensorFrame::all_adopt);
  SavedTensorFrame::all_before_op(call, logged || info.is_lift());
  run_unseen(op, below, stack);
  SavedTensorFrame::all_after_op(call);
}

/// True if this thread is in a region and its ops can be seen. The bits may have come to it without
/// the region, in a copy of another thread's state; and under the Python dispatcher (a compiler
/// traces) a composite op would redispatch to itself for ever.
bool is_seen(DispatchKeySet keys) {
  return SavedTensorFrame::current() && !keys.has(DispatchKey::PythonDispatcher);
}

bool resolves_to_composite(const OperatorHandle& op, DispatchKey key) {
  return c10::isIncludedInAlias(key, DispatchKey::Autograd) &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(key) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForAnyDispatchKey(c10::getBackendKeySetFromAutograd(key));
}

}  // namespace

void set_interception_backend(c10::BackendComponent component) {
  backend = component;
}

void InterceptKernel::operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys.remove_backend(backend);
  if (C10_UNLIKELY(!is_seen(keys))) return run_unseen(op, below, stack);
  const bool by_autograd = level_ == Level::kAutograd;
  const bool composite = by_autograd && is_composite(op, below.highestPriorityTypeId());
  const RegionPolicy* const policy = by_autograd ? SavedTensorFrame::current()->policy() : nullptr;
  if (composite && !policy) return op.redispatchBoxed(below, stack);
  const OpInfo& info = this->info(op);
  const auto run = [&] {
    if (composite) return op.redispatchBoxed(below, stack);
    run_leaf(op, info, below, stack, /*logged=*/by_autograd || info.is_like());
  };
  if (policy && run_by_policy(*policy, decision_, info, composite, *stack, run)) return;
  run();
}

const OpInfo& InterceptKernel::info(const OperatorHandle& op) {
  const OpInfo* info = info_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(!info || !info->describes(op))) {
    info = &op_info(op);
    info_.store(info, std::memory_order_release);
  }
  return *info;
}

bool InterceptKernel::is_composite(const OperatorHandle& op, DispatchKey key) {
  std::atomic<Kind>& kind = kinds_.at(static_cast<size_t>(key));
  Kind known = kind.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(known == Kind::kUnknown)) {
    known = resolves_to_composite(op, key) ? Kind::kComposite : Kind::kLeaf;
    kind.store(known, std::memory_order_relaxed);
  }
  return known == Kind::kComposite;
}

void intercept_fallback(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys.remove_backend(backend);
  if (!is_seen(keys)) return run_unseen(op, below, stack);
  run_leaf(op, op_info(op), below, stack, /*logged=*/false);
}

void intercept_factory(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  keys = keys.remove(DispatchKey::TESTING_ONLY_GenericMode);
  if (!SavedTensorFrame::current()) return run_unseen(op, keys, stack);
  // Compilers make memory, too; but numbers come from the function. A tape wants every one.
  const OpInfo& info = op_info(op);
  const bool logged = info.takes_numbers() || info.may_draw();
  if (logged || SavedTensorFrame::any_records()) return run_leaf(op, info, keys, stack, logged);
  run_unseen(op, keys, stack);
  for (size_t i = 1; i <= op.schema().returns().size(); ++i) {
    for_each_tensor(stack->at(stack->size() - i), &SavedTensorFrame::all_adopt);
  }
}

}  // namespace remat
