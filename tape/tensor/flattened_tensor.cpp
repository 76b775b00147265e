// SPDX-License-Identifier: BSD-3-Clause

// The language binding that takes tensors apart.
#include <remat/tape/flattened_tensor.h>

#include <atomic>

namespace remat {
namespace {

std::atomic<const TensorClasses*> known_classes{nullptr};

}  // namespace

Unflatten::~Unflatten() = default;

void set_tensor_classes(const TensorClasses* classes) {
  known_classes = classes;
}

std::optional<FlattenedTensor> flattened(const at::Tensor& tensor) {
  const TensorClasses* const classes = known_classes;
  return classes ? classes->flatten(tensor) : std::nullopt;
}

uint64_t tensor_class(const at::Tensor& tensor) {
  const TensorClasses* const classes = known_classes;
  return classes ? classes->hash(tensor) : 0;
}

}  // namespace remat
