// SPDX-License-Identifier: BSD-3-Clause

// Custom autograd functions as named calls: op<MyFunction>(name, policy)(args...) and get_handle().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/backend/native_op.h>
#include <remat/engine/export.h>

namespace torch::autograd {
struct AutogradContext;
}

namespace remat {

/// The named call of a custom function's forward(), from get_handle() to record_outputs(). Use it
/// only in forward() and on its thread. Outside of regions it passes everything through.
///
///   static Tensor forward(AutogradContext* ctx, Tensor x) {
///     auto handle = remat::get_handle(ctx, "square", remat::Policy::kSave);
///     if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
///     x = handle.save_or_load_inputs(x);
///     handle.save_for_backward({{"x", x}});
///     return handle.record_outputs(x * x);
///   }
class REMAT_API RematHandle {
 public:
  using NamedTensor = std::pair<std::string, at::Tensor>;

  /// `saving`: see NamedCallScope::expect_saved().
  RematHandle(torch::autograd::AutogradContext* ctx, NamedCall call,
              c10::ArrayRef<at::Tensor> arguments, SavingState saving);
  RematHandle(RematHandle&&) noexcept = default;
  RematHandle& operator=(RematHandle&&) = delete;
  /// Without record_outputs(), the call counts as one that threw.
  ~RematHandle();

  /// In the replay of a SAVE call, returns the tensors that forward() must return at once;
  /// otherwise nullopt. Call it first.
  std::optional<std::vector<at::Tensor>> maybe_load_saved();

  /// Returns the inputs. If a replay will run forward() again (RECOMPUTE), keeps those inputs that
  /// are results of SAVE calls.
  at::Tensor save_or_load_inputs(const at::Tensor& input);
  template <class... Tensors>
  requires(sizeof...(Tensors) >
           1) std::tuple<Tensors...> save_or_load_inputs(const Tensors&... inputs) {
    return {save_or_load_inputs(inputs)...};
  }

  /// Calls ctx->save_for_backward() with these tensors, including undefined ones, in this order.
  /// The names are for reports. Throws ValueError if a name is empty, contains a dot or is used
  /// twice.
  void save_for_backward(c10::ArrayRef<NamedTensor> tensors);
  void save_for_backward(std::initializer_list<NamedTensor> tensors);

  /// Records the results of the call. Returns what forward() must return.
  at::Tensor record_outputs(const at::Tensor& output);
  std::vector<at::Tensor> record_outputs(std::vector<at::Tensor> outputs);

 private:
  void check_loaded(const char* what) const;

  torch::autograd::AutogradContext* ctx_;
  NamedCall call_;
  SavingState saving_;
  // Null outside of regions, and once the call has ended.
  std::unique_ptr<detail::NamedCallScope> scope_;
  bool skipped_ = false;
};

/// Makes forward() of a custom function a named call. `ctx` is the context of forward(). Throws as
/// native_op() does. The handle does not see forward()'s arguments, so they count as captured, and
/// a replay cannot skip a call that returns or writes one of them. Use op<Function>() for such a
/// function.
REMAT_API RematHandle get_handle(torch::autograd::AutogradContext* ctx, std::string name,
                                 Policy policy, Keep keep = Keep::kInnermostRegion);

/// Like the other overload, with the enclosing op()'s name, policy and arguments. Throws ValueError
/// in a region without an enclosing op(); outside of regions the handle passes everything through.
REMAT_API RematHandle get_handle(torch::autograd::AutogradContext* ctx);

namespace detail {

template <class Function>
inline constexpr bool kNamesSaved = requires {
  Function::saved_names[0];
};

/// Throws ValueError if a name is empty or used twice.
REMAT_API void check_saved_names(const NamedCall& call);

/// The op() whose function is running, for get_handle(ctx).
class REMAT_API OpContext {
 public:
  OpContext(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;
  ~OpContext();

  static OpContext* current();

  const NamedCall& call() const { return call_; }
  c10::ArrayRef<at::Tensor> arguments() const { return arguments_; }
  void mark_used() { used_ = true; }
  /// A pointer that expires once the function has returned or thrown.
  std::weak_ptr<const bool> lifetime();

  /// Throws ValueError if no handle was taken.
  void check_used() const;

 private:
  const NamedCall& call_;
  c10::ArrayRef<at::Tensor> arguments_;
  OpContext* outer_;
  std::shared_ptr<const bool> lifetime_;  // null until lifetime() is first called
  bool used_ = false;
};

}  // namespace detail

/// Names a call of a custom autograd function: op<MyFunction>(name, policy)(args...) calls
/// MyFunction::apply(args...).
///
/// A function that lists the names of the tensors that its forward() saves needs nothing else:
///
///   struct Square : torch::autograd::Function<Square> {
///     static constexpr std::array saved_names{"x"};
///     ...
///
/// In the replay of a SAVE call its forward() does not run. Without the list, forward() must call
/// get_handle(ctx); a replay then calls forward(), which gets the results from the handle. Throws
/// as native_op() does; in the region's forward also ValueError if forward() saves more tensors
/// than are listed, or takes no handle.
template <class Function>
auto op(std::string name, Policy policy, Keep keep = Keep::kInnermostRegion) {
  NamedCall call{.name = std::move(name), .policy = policy, .keep = keep, .saved_names = {}};
  detail::check_call_name(call, "op");
  if constexpr (detail::kNamesSaved<Function>) {
    call.saved_names = {std::begin(Function::saved_names), std::end(Function::saved_names)};
    detail::check_saved_names(call);
  }
  return [call = std::move(call)]<class... Args>(Args&&... args) {
    using Result = std::decay_t<decltype(Function::apply(std::forward<Args>(args)...))>;
    const auto apply = [](auto&&... inner) -> Result {
      return Function::apply(std::forward<decltype(inner)>(inner)...);
    };
    if (!detail::is_in_region()) return apply(std::forward<Args>(args)...);
    if constexpr (detail::kNamesSaved<Function>) {
      return detail::run_named_call<Result>(call, apply, std::forward<Args>(args)...);
    } else {
      const auto tensors = detail::tensors_of(args...);
      detail::OpContext context(call, tensors);
      Result result = apply(std::forward<Args>(args)...);
      context.check_used();
      return result;
    }
  };
}

/// How region() treats its function, for example {.recompute = true}.
struct RegionOptions {
  bool recompute;
};

/// native_op() under torch_remat's newer name: region(fn, name, {.recompute = false})(args...).
template <class F>
auto region(F&& fn, std::string name, RegionOptions options) {
  return native_op(std::forward<F>(fn), std::move(name),
                   options.recompute ? Policy::kRecompute : Policy::kSave);
}

}  // namespace remat
