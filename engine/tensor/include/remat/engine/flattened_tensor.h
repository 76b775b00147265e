// SPDX-License-Identifier: BSD-3-Clause

// Tensor subclasses, taken apart into their inner tensors and rebuilt from them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// Rebuilds a tensor of a Python class from inner tensors. Usable from any thread. Called outside
/// all scopes. Throws what the class throws.
using Unflatten = std::function<at::Tensor(c10::ArrayRef<at::Tensor> parts)>;

/// A tensor of a Python class with __torch_dispatch__, as its inner tensors, which may be of such
/// classes too.
struct FlattenedTensor {
  std::vector<at::Tensor> parts;
  Unflatten unflatten;
};

/// Functions of the language binding for tensor subclasses. Called outside all scopes; both may run
/// code of the class. Flatten takes a tensor apart (nullopt if its class does not say how).
/// HashOfClass hashes the class and the class's own metadata, without the inner tensors.
using Flatten = std::optional<FlattenedTensor> (*)(const at::Tensor& tensor);
using HashOfClass = uint64_t (*)(const at::Tensor& tensor);
REMAT_API void set_tensor_classes(Flatten flatten, HashOfClass hash);

/// Call the functions of set_tensor_classes(), and return nullopt and 0 if none have been set.
REMAT_API std::optional<FlattenedTensor> flattened(const at::Tensor& tensor);
REMAT_API uint64_t tensor_class(const at::Tensor& tensor);

/// Returns the indices and values of a sparse tensor; empty for any other tensor. Scopes see the
/// ops that return them, unless the caller hides them with Unseen.
std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor);

}  // namespace remat
