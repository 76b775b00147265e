// SPDX-License-Identifier: BSD-3-Clause

// Taking apart tensors that consist of other tensors.
#include <remat/engine/flattened_tensor.h>

#include <atomic>

namespace remat {
namespace {

std::atomic<Flatten> flatten_tensor{nullptr};
std::atomic<HashOfClass> hash_of_class{nullptr};

}  // namespace

void set_tensor_classes(Flatten flatten, HashOfClass hash) {
  flatten_tensor = flatten;
  hash_of_class = hash;
}

std::optional<FlattenedTensor> flattened(const at::Tensor& tensor) {
  const Flatten flatten = flatten_tensor;
  return flatten ? flatten(tensor) : std::nullopt;
}

uint64_t tensor_class(const at::Tensor& tensor) {
  const HashOfClass hash = hash_of_class;
  return hash ? hash(tensor) : 0;
}

std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor) {
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

}  // namespace remat
