// SPDX-License-Identifier: BSD-3-Clause

// Making a HeldStorage, which refers to the storages of a tensor's inner tensors, too.
#include <remat/engine/held_storage.h>

#include <atomic>
#include <utility>

#include <remat/engine/flattened_tensor.h>
#include <remat/engine/op_call.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

std::atomic<InnerTensors> find_inner{nullptr};

std::vector<at::Tensor> tensors_in(const at::Tensor& tensor) {
  if (is_of_python_class(tensor)) {
    const InnerTensors find = find_inner;
    return find ? find(tensor) : std::vector<at::Tensor>();
  }
  return sparse_parts(tensor);
}

void add_inner(std::vector<at::Tensor>& all, const at::Tensor& tensor) {
  for (const at::Tensor& inner : tensors_in(tensor)) {
    if (!inner.defined()) continue;
    all.push_back(inner);
    if (is_of_python_class(inner)) add_inner(all, inner);
  }
}

}  // namespace

void set_inner_tensors(InnerTensors find) {
  find_inner = find;
}

std::vector<at::Tensor> inner_tensors(const at::Tensor& tensor) {
  std::vector<at::Tensor> all;
  if (!is_of_python_class(tensor)) return all;
  add_inner(all, tensor);
  return all;
}

HeldStorage::Parts HeldStorage::parts_of(const at::Tensor& tensor) {
  const UnseenBelowAutograd unseen;
  std::vector<HeldStorage> parts;
  for (const at::Tensor& inner : tensors_in(tensor)) {
    if (inner.defined()) parts.emplace_back(inner);
  }
  return parts.empty() ? nullptr
                       : std::make_shared<const std::vector<HeldStorage>>(std::move(parts));
}

}  // namespace remat
