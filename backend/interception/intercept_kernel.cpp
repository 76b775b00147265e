// SPDX-License-Identifier: BSD-3-Clause

// The kernel in front of each op, which shows the op to the thread's regions and runs it.
#include "intercept_kernel.h"

#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <remat/engine/collective_work.h>
#include <remat/engine/data_hooks.h>
#include <remat/engine/host_copies.h>
#include <remat/engine/interception_bits.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/engine/unversioned_writes.h>

#include "handler_calls.h"
#include "unmarked_write_check.h"

namespace remat {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

c10::BackendComponent backend = c10::BackendComponent::InvalidBit;

/// Returns the op's info, made once per op and schema. It is never freed, because regions' logs
/// refer to it.
const OpInfo& op_info(const OperatorHandle& op) {
  static std::mutex& mutex = *new std::mutex;
  static auto& infos = *new std::unordered_map<c10::OperatorName, std::deque<OpInfo>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::deque<OpInfo>& all = infos[op.operator_name()];
  // An op that was removed and defined again may have another schema.
  if (all.empty() || !all.back().describes(op)) all.emplace_back(op);
  return all.back();
}

void run_unseen(const OperatorHandle& op, DispatchKeySet below, Stack* stack) {
  const InterceptionOff off;
  op.redispatchBoxed(below, stack);
}

/// Like run_unseen(), but ops that a Python handler calls are intercepted. See Note [Ops inside a
/// leaf op].
void run_below(const OperatorHandle& op, DispatchKeySet below, Stack* stack) {
  if (C10_UNLIKELY(below.has(DispatchKey::Python))) return op.redispatchBoxed(below, stack);
  run_unseen(op, below, stack);
}

void hide_works(const OpCall& call) {
  for (size_t i = 0; i < call.info().return_count(); ++i) {
    c10::IValue& result = call.result(i);
    if (is_work(result)) result = unseen_work(result);
  }
}

// The leaf op in which this thread is. See Note [Ops inside a leaf op].
struct Leaf {
  const Scope* scope = nullptr;
  bool is_of_class = false;  // A tensor subclass handles the op.
};
[[gnu::tls_model("initial-exec")]] thread_local Leaf leaf;

/// While the result lives, this thread is in the leaf op `inner`.
auto enter_leaf(const Leaf& inner) {
  return c10::make_scope_exit([outer = std::exchange(leaf, inner)] { leaf = outer; });
}

bool is_handled_by_class(const OpCall& call, DispatchKeySet below) {
  return C10_UNLIKELY(below.has(DispatchKey::Python)) && is_of_python_class(call);
}

/// Zeroes uninitialised CPU memory of up to OutsideStorage::kMaxCompared bytes. A replay compares
/// what the host may have written there (torch::tensor of a vector), so memory that nobody has
/// written must be equal in both runs. Not needed if LibTorch fills it in deterministic mode; not
/// done if the op goes to Python.
void fill_unwritten(const OpCall& call, DispatchKeySet below) {
  if (call.info().writes() || below.has(DispatchKey::Python)) return;
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) return;
  for_each_result_tensor(call, [](const at::Tensor& tensor) {
    if (!tensor.is_cpu() || !tensor.has_storage()) return;
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    void* const bytes = storage->_mutable_data_ptr_no_checks().get();  // Null in a fake tensor.
    if (bytes && storage->nbytes() <= OutsideStorage::kMaxCompared)
      std::memset(bytes, 0, storage->nbytes());
  });
}

/// True for calls that quantization observers repeat each time: a resize_() to the present sizes, a
/// detach_() of a tensor that is in no graph.
bool changes_nothing(const OpCall& call) {
  const std::string& op = call.info().operator_name().name;
  if (op == "aten::detach_") {
    const at::Tensor& tensor = call.argument(0).toTensor();
    return !tensor.requires_grad() && !tensor.is_view();
  }
  if (op != "aten::resize_") return false;
  const c10::IValue& sizes = call.argument(1);
  return sizes.isIntList() && call.argument(2).isNone() &&
         call.argument(0).toTensor().sizes() == c10::IntArrayRef(sizes.toIntVector());
}

/// Runs an op inside a leaf op. Its results count as made inside in all scopes, unless they lie on
/// memory of its arguments. `is_shown`: true if the scopes' OpObservers are told of the op.
void run_adopted(const OperatorHandle& op, const OpInfo& info, DispatchKeySet below, Stack* stack,
                 bool is_shown) {
  const OpCall call(info, *stack);
  if (C10_UNLIKELY(info.changes_metadata()) && changes_nothing(call))
    return run_below(op, below, stack);
  c10::SmallVector<const void*, 8> given;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { given.push_back(memory_of(tensor)); });
  // A replay adopts this tensor too, which torch.tensor() in a handler has made without an op.
  if (is_shown && info.is_lift()) for_each_tensor(call.argument(0), &OpObserver::all_adopt_part);
  if (is_shown) OpObserver::all_before_part(call);
  auto threw = c10::make_scope_exit([&] {
    if (is_shown) OpObserver::all_op_threw(call);
  });
  note_handler_writes(call);
  const std::vector<const void*> given_inside = inner_memory(call, below);
  run_below(op, below, stack);
  if (is_shown && info.is_communication()) hide_works(call);
  if (C10_UNLIKELY(info.is_uninitialised())) fill_unwritten(call, below);
  threw.release();
  if (is_shown) OpObserver::all_after_part(call);
  adopt_inner_results(call, below, given_inside);
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    if (std::find(given.begin(), given.end(), memory_of(tensor)) == given.end())
      OpObserver::all_adopt_part(tensor);
  });
}

/// True for ops whose results may change at any time until a collective is waited for.
bool is_of_collectives(const OpInfo& info) {
  return info.is_communication() || info.operator_name().name.starts_with("_c10d_functional::");
}

/// If the op waits for a functional collective that began outside the region, waits before the
/// region sees the op, because the region notes the state of a tensor at its first use.
void wait_first(const OpCall& call) {
  if (call.info().operator_name().name != "_c10d_functional::wait_tensor") return;
  wait_for_functional(call.argument(0).toTensor());
}

void run_leaf(const OperatorHandle& op, const OpInfo& info, DispatchKeySet below, Stack* stack,
              bool logged) {
  OpCall call(info, *stack);
  if (C10_UNLIKELY(info.changes_metadata()) && changes_nothing(call))
    return run_below(op, below, stack);
  // The argument of a lift is a tensor that was made without an op and that nobody else has, such
  // as the number in x[mask] = 0.5.
  if (!logged && info.is_lift()) for_each_tensor(call.argument(0), &OpObserver::all_adopt);
  OpObserver::all_before_op(call, logged || info.is_lift());
  auto threw = c10::make_scope_exit([&] { OpObserver::all_op_threw(call); });
  if (info.writes()) hand_to_readers(call);
  {
    const auto in_leaf = enter_leaf({Scope::current(), is_handled_by_class(call, below)});
    const std::vector<const void*> given_inside = inner_memory(call, below);
    HandlerWrites outside(call, below);
    std::optional<const UnversionedWrites> unversioned;
    if (info.writes()) unversioned.emplace(call);
    if (C10_UNLIKELY(info.is_of_library() && !is_of_collectives(info))) {
      const UnmarkedWriteCheck writes(call);
      run_below(op, below, stack);
      writes.check(info);
    } else if (C10_UNLIKELY(info.is_communication())) {
      run_below(op, below, stack);
      hide_works(call);
    } else {
      run_below(op, below, stack);
    }
    if (unversioned) unversioned->finish();
    adopt_inner_results(call, below, given_inside);
    outside.check();
  }
  if (C10_UNLIKELY(info.is_uninitialised())) fill_unwritten(call, below);
  threw.release();
  OpObserver::all_after_op(call);
}

/// True if this thread is in a scope and its ops can be intercepted. The interception bits alone
/// do not say that a scope is open, because they may be copied from another thread. False under
/// the Python dispatcher (a compiler traces), where a composite op would call itself forever.
bool is_seen(DispatchKeySet keys) {
  return Scope::current() && !keys.has(DispatchKey::PythonDispatcher);
}

/// Note [Ops inside a leaf op]: there are three cases.
/// 1. Python handles an op (a dispatch mode or a tensor subclass, always below autograd). The
///    interception bits stay on, so ops that the handler calls reach remat's kernel for the
///    backend. They are part of the handled op.
/// 2. A mode's handler runs although no op was dispatched, as for `tensor.data`. Its ops belong to
///    no op of the function either, because the mode may be absent in backward: is_part_of_op().
/// 3. Ops that skip remat's autograd kernel (rand_like, or any op on inference tensors) reach the
///    backend kernel only from a mode's handler, so case 2 would hide them. They are the function's
///    own, so backend kernels ask is_in_leaf() alone.
bool is_in_leaf() {
  return Scope::current() == leaf.scope;
}

/// Like is_in_leaf(), and also true in the handler of a mode. For ops at an autograd key and for
/// factories.
bool is_part_of_op() {
  return is_in_leaf() || Scope::current()->in_mode_handler();
}

/// Note [Ops of tensor subclasses]: the ops that a tensor subclass's handler calls for an op are
/// the same in a function replay, so only the op itself is compared. The handler's ops run on the
/// subclass's inner tensors, so a tape can record them, policies can name them, and collectives
/// among them are treated as the function's own. Ops that a handler calls only the first time are
/// not shown, because no replay repeats them: ops that ask for shapes, on tensors without data
/// (DTensor caches the answers), the wait for a collective at the first use, and ops of c10d, with
/// which DTensor synchronises the ranks' generators. No collective is lost by that, because those
/// of DTensors are ops of _c10d_functional.
bool is_shown(DispatchKeySet keys, const OpInfo& info) {
  const std::string& name = info.operator_name().name;
  return leaf.is_of_class && is_in_leaf() && !keys.has_backend(c10::BackendComponent::MetaBit) &&
         name != "_c10d_functional::wait_tensor" && !name.starts_with("c10d::");
}

/// If the op is a collective, or a named call by the policy, runs or skips it and returns true. Ops
/// that write are never named calls, except for collectives. Factories that a handler calls are not
/// intercepted, only the ops that resize and fill their results, and skipping such an op would
/// leave the result unfilled.
bool run_part_as_call(const OperatorHandle& op, const OpInfo& info, DispatchKeySet below,
                      Stack* stack) {
  if (info.writes() && !info.is_communication()) return false;
  const RegionPolicy* const policy = Scope::current()->policy();
  if (!policy && !info.is_communication()) return false;
  if (is_of_python_class(OpCall(info, *stack))) return false;  // Its handler's ops may be calls.
  const auto run = [&] {
    const auto in_no_leaf = enter_leaf({});
    run_leaf(op, info, below, stack, /*logged=*/true);
  };
  StaticDecision decision;
  if (policy) return run_by_policy(*policy, decision, info, /*is_composite=*/false, *stack, run);
  return run_communication(decision, info, *stack, run);
}

void run_in_leaf(const OperatorHandle& op, const OpInfo& info, DispatchKeySet keys,
                 DispatchKeySet below, Stack* stack) {
  const bool shown = is_shown(keys, info);
  if (shown && run_part_as_call(op, info, below, stack)) return;
  run_adopted(op, info, below, stack, shown);
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

InterceptKernel::InterceptKernel(const OperatorHandle& op, Level level)
    : level_(level),
      non_blocking_(non_blocking_argument(op.schema())),
      may_return_early_(non_blocking_ < op.schema().arguments().size()) {}

DispatchKeySet InterceptKernel::below(DispatchKeySet keys) {
  return keys.remove_backend(backend);
}

InterceptKernel::Route InterceptKernel::route(const OperatorHandle& op, DispatchKeySet keys,
                                              const at::Tensor* viewed) {
  if (C10_UNLIKELY(!is_seen(keys))) return Route::kUnseen;
  if (C10_UNLIKELY(is_part_of_op() || Scope::current()->policy())) return Route::kSeen;
  const DispatchKeySet below = InterceptKernel::below(keys);
  if (is_composite(op, below.highestPriorityTypeId())) return Route::kParts;
  const bool is_skipped =
      viewed && !below.has(DispatchKey::Python) && OpObserver::all_skip_view(*viewed);
  return is_skipped ? Route::kSkippedView : Route::kSeen;
}

void InterceptKernel::operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = InterceptKernel::below(keys);
  if (C10_UNLIKELY(!is_seen(keys))) return run_unseen(op, below, stack);
  const bool is_part = level_ == Level::kAutograd ? is_part_of_op() : is_in_leaf();
  if (C10_UNLIKELY(is_part)) return run_in_leaf(op, info(op), keys, below, stack);
  const bool by_autograd = level_ == Level::kAutograd;
  const bool composite = by_autograd && is_composite(op, below.highestPriorityTypeId());
  const RegionPolicy* policy = by_autograd ? Scope::current()->policy() : nullptr;
  if (composite && !policy) return op.redispatchBoxed(below, stack);
  const OpInfo& info = this->info(op);
  // See Note [Ops of tensor subclasses].
  if (C10_UNLIKELY(below.has(DispatchKey::Python)) && is_of_python_class(OpCall(info, *stack)))
    policy = nullptr;
  if (composite && !policy) return op.redispatchBoxed(below, stack);
  if (C10_UNLIKELY(info.is_communication()) && by_autograd) wait_first({info, *stack});
  const auto run = [&] {
    if (composite) return op.redispatchBoxed(below, stack);
    const bool logged = by_autograd || !info.is_lift();
    if (C10_LIKELY(!may_return_early_)) return run_leaf(op, info, below, stack, logged);
    const HostCopy copy(OpCall(info, *stack), non_blocking_);
    run_leaf(op, info, below, stack, logged);
    copy.wait();
  };
  if (policy && run_by_policy(*policy, decision_, info, composite, *stack, run)) return;
  if (C10_UNLIKELY(info.is_communication()) && by_autograd && !policy &&
      run_communication(decision_, info, *stack, run)) {
    return;
  }
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
  if (is_in_leaf()) return run_in_leaf(op, op_info(op), keys, below, stack);
  const OpInfo& info = op_info(op);
  run_leaf(op, info, below, stack, /*logged=*/!info.is_lift());
}

// Note [Where nothing may be thrown]: Node::add_input_metadata() is noexcept, and gets a nested
// tensor's sizes by an op. An exception from a scope (a refusal, a mismatch, the stop of a replay)
// would end the process there. So scopes are only told that the tensor of sizes was made inside. A
// strict tape that has refused an op refuses again at the end of the region, in case the function
// caught the exception.
void intercept_size_query(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  run_unseen(op, keys.remove_backend(backend), stack);
  if (is_seen(keys)) for_each_tensor(stack->back(), &OpObserver::all_adopt);
}

// Note [Notes for the allocator]: record_stream() is marked as a write of its tensor, but only
// tells the allocator that a stream uses the memory. The call is no part of a region's computation.
// A replay may name another stream, because functions may make new streams each time.
void intercept_note(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (is_seen(keys)) {
    c10::IValue& noted = torch::jit::peek(*stack, 0, op.schema().arguments().size());
    noted = OpObserver::current_stand_in(noted.toTensor());
  }
  run_unseen(op, keys.remove_backend(backend), stack);
}

void intercept_plain_write(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys & c10::after_ADInplaceOrView_keyset;
  const bool has_readers = youngest_region() != 0;  // the process has had a region
  if (Scope::current() || !has_readers) return op.redispatchBoxed(below, stack);
  const OpCall call(op_info(op), *stack);
  hand_to_readers(call);
  const UnversionedWrites writes(call);
  op.redispatchBoxed(below, stack);
  writes.finish();
}

void intercept_factory(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  keys = keys.remove(DispatchKey::TESTING_ONLY_GenericMode);
  if (!Scope::current()) return run_unseen(op, keys, stack);
  if (is_part_of_op()) return run_in_leaf(op, op_info(op), keys, keys, stack);
  // Factories of uninitialised memory are not logged, because compilers call some of their own,
  // which need not be the same in a replay. The ops that later fill the memory are logged.
  const OpInfo& info = op_info(op);
  run_leaf(op, info, keys, stack, /*logged=*/!info.is_uninitialised());
}

}  // namespace remat
