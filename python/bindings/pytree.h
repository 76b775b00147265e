// SPDX-License-Identifier: BSD-3-Clause

// Which Python objects hold others.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// True for a class made by collections.namedtuple or typing.NamedTuple.
bool is_named_tuple(PyTypeObject* type);

/// True for a class like those in torch.return_types.
bool is_struct_sequence(PyTypeObject* type);

/// What torch.utils._pytree has registered for the class of `object`: borrowed; null if nothing.
/// Throws python_error.
PyObject* find_pytree_node(PyObject* object);

/// The parts of an object by its registered node.
struct PytreeParts {
  PyObject* children;  ///< A list, new.
  PyObject* context;   ///< New.
};

/// Throws python_error.
PytreeParts flatten(PyObject* node, PyObject* object);

}  // namespace remat::python
