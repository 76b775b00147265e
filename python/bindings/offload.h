// SPDX-License-Identifier: BSD-3-Clause

// C++ stores for Python: host_memory_store(), and the engine behind offload().
#pragma once

#include <Python.h>

namespace remat::python {

void add_offload(PyObject* module);

}  // namespace remat::python
