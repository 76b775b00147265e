// SPDX-License-Identifier: BSD-3-Clause

// Makes CPU tensors at the addresses where the host may touch device memory.
#include "host_views.h"

#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>

#include "../control.h"

namespace cuda_stand_in {
namespace {

// Type promotion treats wrapped numbers differently.
void copy_wrapped_number(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

at::Tensor cpu_copy(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided) return tensor;
  at::Tensor copy = tensor.detach().clone();
  copy_wrapped_number(tensor, copy);
  return copy;
}

at::Tensor host_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cuda()) return host_view(tensor);
  return cpu_copy(tensor);
}

}  // namespace

bool has_host_view(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.layout() == at::kStrided;
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const void* const data = tensor.numel() ? tensor.const_data_ptr() : nullptr;
  at::Tensor view =
      at::from_blob(cuda_stand_in_host_address(data), tensor.sizes(), tensor.strides(),
                    at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  copy_wrapped_number(tensor, view);
  return view;
}

c10::IValue host_argument(const c10::IValue& argument) {
  if (argument.isTensor()) return host_tensor(argument.toTensor());
  if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(host_tensor(tensor));
    return list;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : argument.toListRef()) {
      list.push_back(element.isNone() ? std::nullopt
                                      : std::optional<at::Tensor>(host_tensor(element.toTensor())));
    }
    return list;
  }
  if (argument.isDevice() && argument.toDevice().is_cuda()) return c10::Device(at::kCPU);
  return argument;
}

}  // namespace cuda_stand_in
