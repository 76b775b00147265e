// SPDX-License-Identifier: BSD-3-Clause

// Looking into tensors of Python classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include <remat/tape/flattened_tensor.h>

namespace remat::python {

/// The tensors that `tensor` says it consists of (__tensor_flatten__); of a class that does not
/// say, those among its attributes and slots, and in lists, tuples and dicts there. Takes the GIL;
/// leaves no error.
std::vector<at::Tensor> inner_tensors(const at::Tensor& tensor);

/// Takes a tensor apart by __tensor_flatten__; none if its class cannot make it again. Takes the
/// GIL; leaves no error.
std::optional<FlattenedTensor> flatten_tensor(const at::Tensor& tensor);

}  // namespace remat::python
