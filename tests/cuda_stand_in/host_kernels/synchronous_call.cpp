// SPDX-License-Identifier: BSD-3-Clause

// Computes on the host while the caller waits.
#include "synchronous_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "host_views.h"
#include "plain_thread.h"

namespace cuda_stand_in {
namespace {

using c10::IValue;
using torch::jit::Stack;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

void wait_for_stream() {
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  cuda.synchronizeStream(cuda.getStream(cuda.getDevice()));
}

Stack compute_on_host(const c10::OperatorHandle& op, HostComputation compute,
                      const Stack& arguments) {
  const PlainThread plain;
  Stack host;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(op.schema().arguments()[i])) {
      const at::Tensor& out = arguments[i].toTensor();
      host.emplace_back(at::empty({0}, out.options().device(at::kCPU)));
    } else {
      host.push_back(host_argument(arguments[i]));
    }
  }
  compute(op, host, {});
  return host;
}

at::Tensor on_device(const at::Tensor& value) {
  if (!value.defined()) return value;
  at::Tensor result =
      at::empty_strided(value.sizes(), value.strides(), value.options().device(at::kCUDA));
  if (value.numel()) result.copy_(value);
  return result;
}

at::Tensor written(const at::Tensor& argument, const at::Tensor& value) {
  argument.resize_(value.sizes());
  argument.copy_(value);
  return argument;
}

}  // namespace

void call_synchronously(const c10::OperatorHandle& op, HostComputation compute,
                        const Stack& arguments, Stack* stack) {
  wait_for_stream();
  const Stack values = compute_on_host(op, compute, arguments);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (is_written(op.schema().arguments()[i])) outs.push_back(arguments[i].toTensor());

  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, arguments.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].isTensor()) {
      stack->push_back(values[i]);
    } else if (i < outs.size()) {
      stack->emplace_back(written(outs[i], values[i].toTensor()));
    } else {
      stack->emplace_back(on_device(values[i].toTensor()));
    }
  }
}

}  // namespace cuda_stand_in
