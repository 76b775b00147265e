// SPDX-License-Identifier: BSD-3-Clause

// Tensors of Python classes taken apart, and made of their parts again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

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

/// Takes a tensor apart, outside of all scopes; none if its class does not say how. Set by the
/// binding of the language; may be null.
using FlattenTensor = std::optional<FlattenedTensor> (*)(const at::Tensor& tensor);
REMAT_API void set_flatten_tensor(FlattenTensor flatten);

/// What set_flatten_tensor() was given; none if it was given nothing.
REMAT_API std::optional<FlattenedTensor> flattened(const at::Tensor& tensor);

}  // namespace remat
