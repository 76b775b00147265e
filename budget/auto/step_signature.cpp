// SPDX-License-Identifier: BSD-3-Clause

// The signature by which a step is recognised before it runs.
#include <remat/budget/auto_checkpoint.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <functional>

#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/planner/digest.h>

namespace remat {

namespace {

/// Replaces tensor subclasses by their inner tensors, because a subclass may have no sizes itself.
std::vector<at::Tensor> flattened_arguments(c10::ArrayRef<at::Tensor> arguments) {
  std::vector<at::Tensor> plain;
  for (const at::Tensor& tensor : arguments) {
    const std::vector<at::Tensor> parts =
        is_of_python_class(tensor) ? inner_tensors(tensor) : std::vector<at::Tensor>();
    if (parts.empty()) plain.push_back(tensor);
    for (const at::Tensor& part : parts) {
      if (!is_of_python_class(part)) plain.push_back(part);
    }
  }
  return plain;
}

}  // namespace

StepSignature StepSignature::of(c10::ArrayRef<at::Tensor> arguments, int64_t mode) {
  StepSignature signature;
  detail::Digest kind;
  kind.add(mode);
  for (const auto device : {c10::kCPU, c10::kCUDA}) {
    kind.add(at::autocast::is_autocast_enabled(device) ? 1 : 0);
    kind.add(static_cast<int64_t>(at::autocast::get_autocast_dtype(device)));
  }
  for (const at::Tensor& tensor : flattened_arguments(arguments)) {
    if (!tensor.defined()) {
      kind.add(-1);
      continue;
    }
    kind.add(static_cast<int64_t>(tensor.scalar_type()));
    kind.add(static_cast<int64_t>(tensor.device().type()));
    kind.add(tensor.requires_grad() ? 1 : 0);
    kind.add(tensor.dim());
    const auto sizes = tensor.sizes();
    signature.sizes.insert(signature.sizes.end(), sizes.begin(), sizes.end());
  }
  signature.kind = kind.hash();
  return signature;
}

bool StepSignature::covers(const StepSignature& other) const {
  return kind == other.kind && sizes.size() == other.sizes.size() &&
         std::equal(sizes.begin(), sizes.end(), other.sizes.begin(), std::greater_equal<>());
}

}  // namespace remat
