// SPDX-License-Identifier: BSD-3-Clause

// What a tensor that autograd saves is an alias of.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace remat {

/// The original of a SavedOriginalGuard of this thread if `tensor` is its alias, not a copy; else
/// `tensor` itself. The original has the versions and the graph that the alias has not.
const at::Tensor& saved_original(const at::Tensor& tensor);

/// The same if `tensor` is on its storage, however it lies there: a kept result of a SAVE call,
/// which is all of the storage.
const at::Tensor& original_on_storage(const at::Tensor& tensor);

struct CopiedOriginal {
  const at::Tensor& tensor;
  bool after_op;  ///< As the op that runs has left it, though outer scopes have not been told yet.
};

/// That original if `tensor` is a copy of it, or of all bytes of its storage.
std::optional<CopiedOriginal> copied_original(const at::Tensor& tensor);

}  // namespace remat
