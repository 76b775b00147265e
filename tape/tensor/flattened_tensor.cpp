// SPDX-License-Identifier: BSD-3-Clause

// Who takes tensors apart.
#include <remat/tape/flattened_tensor.h>

#include <atomic>

namespace remat {
namespace {

std::atomic<FlattenTensor> flatten_tensor{nullptr};

}  // namespace

Unflatten::~Unflatten() = default;

void set_flatten_tensor(FlattenTensor flatten) {
  flatten_tensor = flatten;
}

std::optional<FlattenedTensor> flattened(const at::Tensor& tensor) {
  const FlattenTensor flatten = flatten_tensor;
  return flatten ? flatten(tensor) : std::nullopt;
}

}  // namespace remat
