// SPDX-License-Identifier: BSD-3-Clause

// Recognizes and flattens Python containers.
#pragma once

#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <utility>

namespace remat::python {

/// True for a class made by collections.namedtuple or typing.NamedTuple.
bool is_named_tuple(PyTypeObject* type);

/// True for a structseq class, such as those in torch.return_types.
bool is_struct_sequence(PyTypeObject* type);

/// The node that torch.utils._pytree has registered for the class of `object`, borrowed; null if
/// there is none. Throws python_error.
PyObject* find_pytree_node(PyObject* object);

/// Flattens `object` with its registered `node`: a list of the children, and the context. Throws
/// python_error.
std::pair<THPObjectPtr, THPObjectPtr> flatten(PyObject* node, PyObject* object);

}  // namespace remat::python
