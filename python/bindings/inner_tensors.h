// SPDX-License-Identifier: BSD-3-Clause

// Access to the tensors inside tensors of Python classes.
#pragma once

namespace remat::python {

/// Tells scopes which tensors a tensor of a Python class consists of: those that its
/// __tensor_flatten__ names; for a class without that, the tensors among its attributes and slots,
/// and in lists, tuples and dicts there.
void install_tensor_classes();

}  // namespace remat::python
