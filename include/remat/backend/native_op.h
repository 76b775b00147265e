// SPDX-License-Identifier: BSD-3-Clause

// native_op(fn, name, policy)(args...): a named part of a region, saved or recomputed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <remat/backend/named_call_scope.h>
#include <remat/backend/tensor_tree.h>
#include <remat/engine/named_call.h>
#include <remat/policy/policy.h>

namespace remat {
namespace detail {

template <class Result>
CallResults take_apart(const Result& result) {
  CallResults parts;
  visit_tensors(result, [&](const at::Tensor& tensor) { parts.tensors.push_back(tensor); });
  if constexpr (!std::is_same_v<Result, at::Tensor>) {
    auto holder = std::make_shared<Result>(result);
    visit_tensors(*holder, [](at::Tensor& tensor) { tensor = at::Tensor(); });
    parts.holder = std::move(holder);
  }
  return parts;
}

template <class Result>
Result put_together(const CallResults& parts) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return parts.tensors[0];
  } else {
    Result result = *static_cast<const Result*>(parts.holder.get());
    size_t next = 0;
    visit_tensors(result, [&](at::Tensor& tensor) { tensor = parts.tensors[next++]; });
    return result;
  }
}

/// The tensors among `args`, in order.
template <class... Args>
c10::SmallVector<at::Tensor, 8> tensors_of(const Args&... args) {
  c10::SmallVector<at::Tensor, 8> tensors;
  (visit_tensors(args, [&](const at::Tensor& tensor) { tensors.push_back(tensor); }), ...);
  return tensors;
}

/// Runs `fn` with `args` as `call`, or skips it and returns the kept results.
template <class Result, class F, class... Args>
Result run_named_call(const NamedCall& call, F& fn, Args&&... args) {
  NamedCallScope scope(call, tensors_of(args...));
  if constexpr (std::is_void_v<Result>) {
    if (scope.is_skipped()) return;
    std::invoke(fn, std::forward<Args>(args)...);
    scope.finish({});
  } else {
    if (scope.is_skipped()) return put_together<Result>(scope.results());
    Result result = std::invoke(fn, std::forward<Args>(args)...);
    scope.finish(take_apart(result));
    return result;
  }
}

}  // namespace detail

/// The named call that native_op() returns. Copyable; may be called from any thread if fn may.
template <class F>
class NamedFunction {
 public:
  NamedFunction(NamedCall call, F fn) : call_(std::move(call)), fn_(std::move(fn)) {}

  /// Calls fn with `args` and returns its result; in the replay of a SAVE call, returns the result
  /// without calling fn. Among `args`, remat sees tensors, and containers of tensors that have the
  /// trait TensorTree.
  template <class... Args>
  auto operator()(Args&&... args) {
    return run(fn_, std::forward<Args>(args)...);
  }

  /// Like the other overload, if calling fn does not change fn.
  template <class... Args>
  requires(std::is_invocable_v<const F&, Args...>) auto operator()(Args&&... args) const {
    return run(fn_, std::forward<Args>(args)...);
  }

 private:
  template <class Fn, class... Args>
  auto run(Fn& fn, Args&&... args) const {
    static_assert(
        std::is_invocable_v<Fn&, Args...>,
        "[native_op] fn: expected a function that can be called with these arguments, got "
        "one that cannot. Wrap a module in a lambda that calls its forward(); a lambda "
        "that captures a module holder by value must be mutable.");
    using Result = std::decay_t<std::invoke_result_t<Fn&, Args...>>;
    static_assert(
        std::is_void_v<Result> || detail::kAllTensors<Result>,
        "[native_op] output: expected nothing, a Tensor, or a tuple, pair, vector, array, "
        "optional or map of Tensors to any depth, or a struct with the trait "
        "remat::TensorTree; got a result with another type in it.");
    if (!detail::is_in_region()) return Result(std::invoke(fn, std::forward<Args>(args)...));
    return detail::run_named_call<Result>(call_, fn, std::forward<Args>(args)...);
  }

  NamedCall call_;
  F fn_;
};

/// Names a part of a region's function: native_op(fn, name, policy)(args...). Outside of regions it
/// only calls fn.
///
/// RECOMPUTE: fn runs again in a replay. SAVE: fn does not run again; the tensors that autograd
/// saved in it are kept, except those among `args` that the replay recomputes anyway, and its
/// results are kept if recomputed code reads them. OFFLOAD: like SAVE, but the region's
/// offload_store or saved_tensors_hooks keep the tensors. In nested regions SAVE applies to the
/// inner region alone, so the outer region's replay runs fn again, and the call's results are kept
/// from then on. With Keep::kAllRegions they are kept from the first forward.
///
/// fn may be any callable that returns nothing, a Tensor, or a nesting of Tensors. `name` must be
/// unique in the region, see NameScope. Throws ValueError if `name` or fn is empty; in the region's
/// forward, c10::Error if the name was used before, and NotImplementedError if a replay could not
/// skip the call. Source: torch_remat's region().
template <class F>
auto native_op(F&& fn, std::string name, Policy policy, Keep keep = Keep::kInnermostRegion) {
  using Function = std::decay_t<F>;
  NamedCall call{.name = std::move(name), .policy = policy, .keep = keep, .saved_names = {}};
  detail::check_call_name(call, "native_op");
  Function function(std::forward<F>(fn));
  if constexpr (std::is_constructible_v<bool, const Function&> &&
                !std::is_convertible_v<Function, at::Tensor>) {
    TORCH_CHECK_VALUE(static_cast<bool>(function), "[native_op] ", call.str(),
                      ": fn: expected a function, got an empty one. Set it before the call.");
  }
  return NamedFunction<Function>(std::move(call), std::move(function));
}

/// Tells the region that recomputed code reads these tensors, if they are results of SAVE calls.
/// Use it for reads that remat cannot see (through a pointer), or so that `implicit_keep` does not
/// warn or raise.
/// A view stands for its whole base. Does nothing for other tensors, in a replay and outside of
/// regions.
REMAT_API void recompute_needs_tensor(c10::ArrayRef<at::Tensor> tensors);

template <class... Tensors>
requires(std::is_convertible_v<const Tensors&, at::Tensor>&&...) void recompute_needs_tensor(
    const Tensors&... tensors) {
  recompute_needs_tensor(c10::ArrayRef<at::Tensor>({at::Tensor(tensors)...}));
}

}  // namespace remat
