// SPDX-License-Identifier: BSD-3-Clause

// Looking into tensors of Python classes.
#pragma once

namespace remat::python {

/// From now on scopes know what tensors of Python classes consist of: what their __tensor_flatten__
/// says; of a class that does not say, the tensors among its attributes and slots, and in lists,
/// tuples and dicts there.
void install_tensor_classes();

}  // namespace remat::python
