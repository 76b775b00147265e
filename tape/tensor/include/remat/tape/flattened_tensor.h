// SPDX-License-Identifier: BSD-3-Clause

// Tensors of Python classes taken apart, and made of their parts again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// Makes a tensor of a Python class of tensors like those that it consisted of. From any thread.
class REMAT_API Unflatten {
 public:
  Unflatten() = default;
  Unflatten(const Unflatten&) = delete;
  Unflatten& operator=(const Unflatten&) = delete;
  virtual ~Unflatten();

  /// A new tensor, outside of all scopes. Throws what the class throws.
  virtual at::Tensor make(c10::ArrayRef<at::Tensor> parts) const = 0;
};

/// A tensor of a Python class with __torch_dispatch__, by what it consists of. Parts may be of such
/// classes, too.
struct FlattenedTensor {
  std::vector<at::Tensor> parts;
  std::shared_ptr<const Unflatten> unflatten;
};

/// What the binding of the language knows of such tensors. Called outside of all scopes; may run
/// code of the class.
struct TensorClasses {
  /// Takes a tensor apart; none if its class does not say how.
  std::optional<FlattenedTensor> (*flatten)(const at::Tensor& tensor);
  /// A hash of its class, and of what the class says of it but the tensors in it.
  uint64_t (*hash)(const at::Tensor& tensor);
};
/// Once. What it gets lives for ever.
REMAT_API void set_tensor_classes(const TensorClasses* classes);

/// As TensorClasses; none and 0 without a binding.
REMAT_API std::optional<FlattenedTensor> flattened(const at::Tensor& tensor);
REMAT_API uint64_t tensor_class(const at::Tensor& tensor);

}  // namespace remat
