// SPDX-License-Identifier: BSD-3-Clause

// Runs an op's CUDA kernel for its effects on the allocator, and the host for its numbers.
#include "host_kernel.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "covered.h"
#include "host_job.h"
#include "host_views.h"
#include "plain_thread.h"
#include "random_draw.h"
#include "synchronous_call.h"

namespace cuda_stand_in {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

bool is_on_cuda(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

/// Returns the device of the arguments. CUDA kernels guard the device of their tensors themselves.
c10::Device device_of(const Stack& arguments) {
  for (const IValue& argument : arguments) {
    if (argument.isTensor() && is_on_cuda(argument.toTensor())) return argument.toTensor().device();
    if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector())
        if (is_on_cuda(tensor)) return tensor.device();
    }
    if (argument.isDevice() && argument.toDevice().is_cuda() && argument.toDevice().has_index())
      return argument.toDevice();
  }
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

/// The results as host views; undefined where the op returns an argument that it has written.
std::vector<at::Tensor> result_views(const c10::FunctionSchema& schema, const Stack& stack) {
  std::vector<at::Tensor> views;
  const size_t count = schema.returns().size();
  for (size_t i = 0; i < count; ++i) {
    const bool is_argument = schema.returns()[i].alias_info() != nullptr;
    const IValue& result = stack[stack.size() - count + i];
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector())
        views.push_back(is_argument ? at::Tensor() : host_view(tensor));
    } else {
      views.push_back(is_argument ? at::Tensor() : host_view(result.toTensor()));
    }
  }
  return views;
}

Stack host_arguments(const c10::FunctionSchema& schema, const Stack& arguments,
                     const at::Generator& generator) {
  Stack host;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_generator(schema.arguments()[i])) {
      host.emplace_back(generator);
    } else {
      host.push_back(host_argument(arguments[i]));
    }
  }
  return host;
}

bool have_host_views(c10::ArrayRef<IValue> values) {
  return std::all_of(values.begin(), values.end(), [](const IValue& value) {
    return !value.isTensor() || has_host_view(value.toTensor());
  });
}

}  // namespace

HostKernel::HostKernel(const OperatorHandle& op, Kind kind)
    : kind_(kind),
      is_random_(is_random(op)),
      is_copy_(op.operator_name().name == "aten::copy_"),
      compute_(host_computation(op)) {
  if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA))
    cuda_kernel_.emplace(op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
}

void HostKernel::operator()(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (is_left_to_cuda(arguments)) return call_cuda(op, keys, stack);
  const c10::DeviceGuard device(device_of(arguments));
  const Covered covered;
  if (kind_ == Kind::kSynchronous) return call_synchronously(op, compute_, arguments, stack);
  run_queued(op, keys, arguments, stack);
}

bool HostKernel::is_left_to_cuda(const Stack& arguments) const {
  if (is_covered() && kind_ != Kind::kSynchronous) return true;
  if (!have_host_views(arguments)) return true;
  if (!is_copy_) return false;
  // A copy between devices is a copy by the runtime, on the stream of the source.
  const at::Tensor& to = arguments[0].toTensor();
  return !is_on_cuda(to) || to.device() != arguments[1].toTensor().device();
}

void HostKernel::call_cuda(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
  TORCH_CHECK_NOT_IMPLEMENTED(cuda_kernel_, "[CUDA stand-in] ", toString(op.operator_name()),
                              ": expected a CUDA kernel for these arguments, found none.");
  cuda_kernel_->callBoxed(op, keys, stack);
}

void HostKernel::run_queued(const OperatorHandle& op, c10::DispatchKeySet keys,
                            const Stack& arguments, Stack* stack) const {
  const c10::FunctionSchema& schema = op.schema();
  at::Generator generator;
  if (is_random_) generator = host_generator(arguments);
  call_cuda(op, keys, stack);
  const size_t results = schema.returns().size();
  if (!have_host_views(c10::ArrayRef<IValue>(*stack).slice(stack->size() - results))) return;
  const PlainThread plain;
  enqueue(
      std::make_unique<HostJob>(HostJob{op, compute_, host_arguments(schema, arguments, generator),
                                        result_views(schema, *stack), generator}));
}

}  // namespace cuda_stand_in
