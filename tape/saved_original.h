// SPDX-License-Identifier: BSD-3-Clause

// What a tensor that autograd saves is an alias of.
#pragma once

#include <ATen/core/Tensor.h>

namespace remat {

/// The original of a SavedOriginalGuard of this thread if `tensor` is its alias, not a copy; else
/// `tensor` itself. The original has the versions and the graph that the alias has not.
const at::Tensor& saved_original(const at::Tensor& tensor);

/// That original if `tensor` is a copy of all bytes of its storage; else null.
const at::Tensor* copied_original(const at::Tensor& tensor);

}  // namespace remat
