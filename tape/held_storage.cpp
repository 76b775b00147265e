// SPDX-License-Identifier: BSD-3-Clause

// Tensors in tensors.
#include <remat/tape/held_storage.h>

#include <atomic>
#include <utility>

#include <remat/tape/op_call.h>

#include "unseen.h"

namespace remat {
namespace {

std::atomic<InnerTensors> inner_tensors{nullptr};

std::vector<at::Tensor> tensors_in(const at::Tensor& tensor) {
  if (is_of_python_class(tensor)) {
    const InnerTensors find = inner_tensors;
    return find ? find(tensor) : std::vector<at::Tensor>();
  }
  switch (tensor.layout()) {
    case c10::kSparse:
      return {tensor._indices(), tensor._values()};
    case c10::kSparseCsr:
    case c10::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case c10::kSparseCsc:
    case c10::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      return {};
  }
}

}  // namespace

void set_inner_tensors(InnerTensors find) {
  inner_tensors = find;
}

void visit_inner_tensors(const at::Tensor& tensor,
                         c10::function_ref<void(const at::Tensor&)> visit) {
  for (const at::Tensor& inner : tensors_in(tensor)) {
    if (!inner.defined()) continue;
    visit(inner);
    if (is_of_python_class(inner)) visit_inner_tensors(inner, visit);
  }
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
