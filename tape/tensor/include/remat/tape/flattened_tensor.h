// SPDX-License-Identifier: BSD-3-Clause

// Tensor subclasses, taken apart into their inner tensors and rebuilt from them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// Rebuilds a tensor of a Python class from inner tensors. Usable from any thread.
class REMAT_API Unflatten {
 public:
  Unflatten() = default;
  Unflatten(const Unflatten&) = delete;
  Unflatten& operator=(const Unflatten&) = delete;
  virtual ~Unflatten();

  /// Returns a new tensor. Called outside all scopes. Throws what the class throws.
  virtual at::Tensor make(c10::ArrayRef<at::Tensor> parts) const = 0;
};

/// A tensor of a Python class with __torch_dispatch__, as its inner tensors, which may be of such
/// classes too.
struct FlattenedTensor {
  std::vector<at::Tensor> parts;
  std::shared_ptr<const Unflatten> unflatten;
};

/// Functions of the language binding for such tensors. Called outside all scopes; they may run code
/// of the class.
struct TensorClasses {
  /// Takes a tensor apart; nullopt if its class does not say how.
  std::optional<FlattenedTensor> (*flatten)(const at::Tensor& tensor);
  /// A hash of its class and of the class's own metadata, without the inner tensors.
  uint64_t (*hash)(const at::Tensor& tensor);
};
/// Call it once. `classes` must live until the process ends.
REMAT_API void set_tensor_classes(const TensorClasses* classes);

/// Call the function in TensorClasses; nullopt and 0 without a binding.
REMAT_API std::optional<FlattenedTensor> flattened(const at::Tensor& tensor);
REMAT_API uint64_t tensor_class(const at::Tensor& tensor);

}  // namespace remat
