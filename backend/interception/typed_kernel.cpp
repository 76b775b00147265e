// SPDX-License-Identifier: BSD-3-Clause

// The ops that have unboxed kernels, and those kernels.
#include "typed_kernel.h"

#include <ATen/ops/alias_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/chunk_ops.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/dropout_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/flatten_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/rms_norm_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/to_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>

#include <memory>
#include <utility>
#include <vector>

#include <remat/engine/interception_bits.h>
#include <remat/engine/op_observer.h>

#include "intercept_kernel.h"

namespace remat {
namespace {

using c10::DispatchKeySet;
using c10::KernelFunction;
using c10::OperatorHandle;

/// The tensor that a plain view op views; null for other ops.
template <bool kIsView, class First, class... Rest>
const at::Tensor* viewed(const First& first, const Rest&... /*rest*/) {
  if constexpr (kIsView) {
    return &first;
  } else {
    return nullptr;
  }
}

/// Tells the scopes of a result that shares no memory with `viewed`. A user's own kernel for a view
/// op may return such a copy.
void adopt_copy(const at::Tensor& viewed, const at::Tensor& result) {
  if (memory_of(result) != memory_of(viewed)) OpObserver::all_adopt(result);
}
void adopt_copy(const at::Tensor& viewed, const std::vector<at::Tensor>& results) {
  for (const at::Tensor& result : results) adopt_copy(viewed, result);
}

/// The kernel in front of `Op`, a type in at::_ops.
template <class Op, bool kIsView, class Schema = typename Op::schema>
class TypedKernel;

template <class Op, bool kIsView, class Result, class... Args>
class TypedKernel<Op, kIsView, Result(Args...)> final : public c10::OperatorKernel {
 public:
  /// Throws c10::Error if the running LibTorch gives the op another signature.
  explicit TypedKernel(const OperatorHandle& op) : op_(op.typed<Result(Args...)>()) {
    auto kernel = std::make_unique<InterceptKernel>(op, InterceptKernel::Level::kAutograd);
    kernel_ = kernel.get();
    boxed_ = KernelFunction::makeFromBoxedFunctor(std::move(kernel));
  }

  Result operator()(DispatchKeySet keys, Args... args) {
    const DispatchKeySet below = InterceptKernel::below(keys);
    const at::Tensor* const base = viewed<kIsView>(args...);
    switch (kernel_->route(op_, keys, base)) {
      case InterceptKernel::Route::kUnseen: {
        const InterceptionOff off;
        return op_.redispatch(below, std::forward<Args>(args)...);
      }
      case InterceptKernel::Route::kSkippedView: {
        const InterceptionOff off;
        Result result = op_.redispatch(below, std::forward<Args>(args)...);
        if constexpr (kIsView) adopt_copy(*base, result);
        return result;
      }
      case InterceptKernel::Route::kParts:
        return op_.redispatch(below, std::forward<Args>(args)...);
      case InterceptKernel::Route::kSeen:
        break;
    }
    return boxed_.call<Result, Args...>(op_, keys, std::forward<Args>(args)...);
  }

 private:
  c10::TypedOperatorHandle<Result(Args...)> op_;
  InterceptKernel* kernel_;  // Owned by boxed_.
  KernelFunction boxed_;
};

struct TypedOp {
  const char* name;
  const char* overload;
  KernelFunction (*make)(const OperatorHandle& op);
};

template <class Op, bool kIsView>
constexpr TypedOp typed() {
  return {Op::name, Op::overload_name, [](const OperatorHandle& op) {
            return KernelFunction::makeFromUnboxedFunctor<false, TypedKernel<Op, kIsView>>(
                std::make_unique<TypedKernel<Op, kIsView>>(op));
          }};
}

template <class Op>
constexpr TypedOp composite() {
  return typed<Op, false>();
}

/// For ops whose results always share memory with their first argument.
template <class Op>
constexpr TypedOp view() {
  return typed<Op, true>();
}

namespace ops = at::_ops;

constexpr TypedOp kTypedOps[] = {
    view<ops::alias>(),
    view<ops::detach>(),
    view<ops::expand>(),
    view<ops::permute>(),
    view<ops::select_int>(),
    view<ops::slice_Tensor>(),
    view<ops::split_Tensor>(),
    view<ops::split_with_sizes>(),
    view<ops::squeeze>(),
    view<ops::squeeze_dim>(),
    view<ops::t>(),
    view<ops::transpose_int>(),
    view<ops::unbind_int>(),
    view<ops::unsqueeze>(),
    view<ops::view>(),
    composite<ops::batch_norm>(),
    composite<ops::chunk>(),
    composite<ops::contiguous>(),
    composite<ops::conv2d>(),
    composite<ops::cross_entropy_loss>(),
    composite<ops::dropout>(),
    composite<ops::flatten_using_ints>(),
    composite<ops::layer_norm>(),
    composite<ops::linear>(),
    composite<ops::log_softmax_int>(),
    composite<ops::matmul>(),
    composite<ops::reshape>(),
    composite<ops::rms_norm>(),
    composite<ops::scaled_dot_product_attention>(),
    composite<ops::softmax_int>(),
    composite<ops::to_dtype>(),
};

}  // namespace

KernelFunction make_intercept_kernel(const OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  for (const TypedOp& typed : kTypedOps) {
    if (name.name != typed.name || name.overload_name != typed.overload) continue;
    try {
      return typed.make(op);
    } catch (const c10::Error&) {
      break;  // A LibTorch of another version than the one that remat was compiled for.
    }
  }
  return KernelFunction::makeFromBoxedFunctor(
      std::make_unique<InterceptKernel>(op, InterceptKernel::Level::kAutograd));
}

}  // namespace remat
