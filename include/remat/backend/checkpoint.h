// SPDX-License-Identifier: BSD-3-Clause

// checkpoint(options)(fn)(args...): runs fn, drops what autograd saves in it, and runs fn again
// when backward needs the saved tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/OptionalArrayRef.h>

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <remat/backend/borrowed_tensor.h>
#include <remat/backend/checkpoint_options.h>
#include <remat/backend/forward_region.h>
#include <remat/backend/tensor_tree.h>

namespace remat {
namespace detail {

template <class>
inline constexpr bool kFalse = false;

template <class T>
inline constexpr bool kIsArrayRef = false;
template <class T>
inline constexpr bool kIsArrayRef<c10::ArrayRef<T>> = true;
template <class T>
inline constexpr bool kIsArrayRef<c10::OptionalArrayRef<T>> = true;
template <class T>
inline constexpr bool kIsArrayRef<std::optional<T>> = kIsArrayRef<T>;

template <class T>
T& unwrap(T& value) {
  return value;
}
template <class T>
T& unwrap(std::reference_wrapper<T>& value) {
  return value.get();
}
template <class T>
T& unwrap(const std::reference_wrapper<T>& value) {
  return value.get();
}

/// Calls `fn`, or forward() of a module holder whose forward() is a template: LibTorch gives such
/// holders (Sequential) an operator() that returns nothing.
template <class F, class... Args>
decltype(auto) invoke_function(F& fn, Args&... args) {
  if constexpr (std::is_void_v<std::invoke_result_t<F&, Args&...>> &&
                requires { fn->forward(args...); }) {
    return fn->forward(args...);
  } else {
    return std::invoke(fn, args...);
  }
}

/// Calls `fn` with lvalues of `args`; a std::reference_wrapper becomes what it refers to.
template <class F, class... Args>
decltype(auto) call(F& fn, std::tuple<Args...>& args) {
  return std::apply(
      [&](auto&... arg) -> decltype(auto) { return invoke_function(unwrap(fn), unwrap(arg)...); },
      args);
}

template <class F, class... Args>
using CallResult =
    std::decay_t<decltype(call(std::declval<F&>(), std::declval<std::tuple<Args...>&>()))>;

/// True if a const F can be called. All replays may then share one F.
template <class F, class... Args>
inline constexpr bool kConstCallable =
    std::is_invocable_v<const F&, decltype(unwrap(std::declval<Args&>()))...>;

/// A function and decay-copies of its arguments. The tensors among the arguments are moved out and
/// kept by the region.
template <class F, class... Args>
class FunctionBody final : public RegionBody {
 public:
  /// Copies `args` and moves the tensors of the copy to `inputs`.
  FunctionBody(F fn, const std::tuple<Args...>& args, std::vector<at::Tensor>& inputs)
      : fn_(std::move(fn)), args_(args) {
    visit_arguments(
        args_, [&](at::Tensor& tensor) { inputs.push_back(std::exchange(tensor, at::Tensor())); });
    watch_borrowed(args_);
  }

  std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> inputs) const override {
    for (const BorrowedTensor& tensor : borrowed_) tensor.check_unchanged();
    std::tuple<Args...> args = args_;
    size_t next = 0;
    visit_arguments(args, [&](at::Tensor& tensor) { tensor = inputs[next++]; });
    if constexpr (kConstCallable<F, Args...>) {
      return std::make_shared<CallResult<const F, Args...>>(call(fn_, args));
    } else {
      F fn = fn_;  // changes that the call makes to fn must not reach the next replay
      return std::make_shared<CallResult<F, Args...>>(call(fn, args));
    }
  }

 private:
  template <class Visitor>
  static void visit_arguments(std::tuple<Args...>& args, Visitor&& visitor) {
    std::apply([&](auto&... arg) { (visit_tensors(arg, visitor), ...); }, args);
  }

  void watch_borrowed(const std::tuple<Args...>& args) {
    const auto watch = [&](const auto& arg) {
      if constexpr (std::is_convertible_v<decltype(arg),
                                          std::reference_wrapper<const at::Tensor>> &&
                    !std::is_same_v<std::decay_t<decltype(arg)>, at::Tensor>) {
        borrowed_.emplace_back(arg.get());
      }
    };
    std::apply([&](const auto&... arg) { (watch(arg), ...); }, args);
  }

  F fn_;
  std::tuple<Args...> args_;
  std::vector<BorrowedTensor> borrowed_;
};

}  // namespace detail

/// The checkpointed function that checkpoint(options)(fn) returns. Copyable; may be called from any
/// thread if fn may.
template <class F>
class Checkpointed {
 public:
  Checkpointed(std::shared_ptr<const CheckpointOptions> options, F fn)
      : options_(std::move(options)), fn_(std::move(fn)) {}

  /// Calls fn with decay-copied `args` as lvalues (std::ref: no copy) and returns its result. Makes
  /// no region if records_regions() is false. Exceptions of fn pass through and close the region.
  template <class... Args>
  auto operator()(Args&&... args) {
    check_arguments<std::decay_t<Args>...>();
    return run(fn_, std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...));
  }

  /// Like the other overload, if calling fn does not change fn.
  template <class... Args>
  requires(detail::kConstCallable<F, std::decay_t<Args>...>) auto operator()(Args&&... args) const {
    check_arguments<std::decay_t<Args>...>();
    return run(fn_, std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...));
  }

 private:
  template <class... Args>
  static constexpr void check_arguments() {
    static_assert((std::is_copy_constructible_v<Args> && ...),
                  "[checkpoint] args: expected copyable arguments, since a replay passes them "
                  "again; got one that can only be moved. Pass a std::shared_ptr or std::ref.");
    static_assert((!detail::kIsArrayRef<Args> && ...),
                  "[checkpoint] args: expected arguments that own what they hold, since a replay "
                  "passes them again; got an ArrayRef or TensorList. Pass a std::vector.");
    static_assert(
        std::is_invocable_v<decltype(detail::unwrap(std::declval<F&>())),
                            decltype(detail::unwrap(std::declval<Args&>()))...>,
        "[checkpoint] fn: expected a function that can be called with lvalues of these arguments; "
        "got one that cannot. Wrap a module in a lambda that calls its forward(); a lambda that "
        "captures a module holder by value must be mutable.");
  }

  template <class Fn, class... Args>
  auto run(Fn& fn, std::tuple<Args...> args) const {
    using Result = detail::CallResult<Fn, Args...>;
    static_assert(!std::is_void_v<Result>,
                  "[checkpoint] output: expected a Tensor or a nesting of Tensors, got a function "
                  "that returns nothing, which backward could never reach. Return its result.");
    static_assert(std::is_void_v<Result> || detail::kAllTensors<Result>,
                  "[checkpoint] output: expected a Tensor, or a tuple, pair, vector, array, "
                  "optional or map of Tensors to any depth, or a struct with the trait "
                  "remat::TensorTree; got a result with another type in it. Return values that "
                  "are no tensors through std::ref or a capture.");
    if (!detail::records_regions()) return Result(detail::call(fn, args));
    std::vector<at::Tensor> inputs;
    auto body = std::make_unique<detail::FunctionBody<F, Args...>>(fn, args, inputs);
    detail::ForwardRegion region(*options_, std::move(body), inputs);
    Result result = detail::call(fn, args);
    std::vector<at::Tensor> outputs;
    detail::visit_tensors(std::as_const(result),
                          [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
    region.finish(outputs);
    return result;
  }

  std::shared_ptr<const CheckpointOptions> options_;
  F fn_;
};

/// The intermediate result of checkpoint(options), which takes the function.
class CheckpointBuilder {
 public:
  explicit CheckpointBuilder(std::shared_ptr<const CheckpointOptions> options)
      : options_(std::move(options)) {}

  /// Takes a decay-copy of `fn`: a callable, a pointer to member, a module holder, or std::ref of
  /// one. Throws ValueError if `fn` is empty (a null std::function or module holder).
  template <class F>
  auto operator()(F&& fn) const {
    using Function = std::decay_t<F>;
    static_assert(std::is_copy_constructible_v<Function>,
                  "[checkpoint] fn: expected a copyable function, since the graph keeps a copy; "
                  "got one that can only be moved. Capture a std::shared_ptr, or pass std::ref.");
    Function function(std::forward<F>(fn));
    if constexpr (std::is_constructible_v<bool, const Function&>) {
      TORCH_CHECK_VALUE(static_cast<bool>(function), "[checkpoint] region '", options_->name,
                        "': fn: expected a function, got an empty one. Set it before the call.");
    }
    return Checkpointed<Function>(options_, std::move(function));
  }

 private:
  std::shared_ptr<const CheckpointOptions> options_;
};

/// Checkpoints a function in three calls: checkpoint(options)(fn)(args...).
///
/// fn runs in the forward and the tensors that autograd saves in it are dropped; when backward
/// reaches fn's result, fn runs again (the replay). Gradients are bitwise those of fn(args...).
/// Kept until the last saved tensor is freed: the tensor arguments, copies of fn and of the
/// arguments, about 150 bytes per dropped tensor, and 2.5 kB if fn drew from the CPU generator.
/// Pass tensors as arguments rather than captures, so that an outer region can drop them too.
/// Source: torch.utils.checkpoint with use_reentrant=False.
inline CheckpointBuilder checkpoint(CheckpointOptions options = {}) {
  detail::check_options(options, "checkpoint");
  return CheckpointBuilder(std::make_shared<const CheckpointOptions>(std::move(options)));
}

template <class F>
requires(!std::is_convertible_v<F&&, CheckpointOptions>) CheckpointBuilder checkpoint(F&& /*fn*/) {
  static_assert(detail::kFalse<F>,
                "[checkpoint] options: expected CheckpointOptions in the first call, got something "
                "else, probably the function. Write checkpoint(options)(fn)(args...), or "
                "checkpoint()(fn)(args...).");
  return checkpoint();
}

}  // namespace remat
