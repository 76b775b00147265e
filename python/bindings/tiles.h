// SPDX-License-Identifier: BSD-3-Clause

// The functions that Python's tiled() calls: see remat/backend/tiled.h.
#pragma once

#include <Python.h>

namespace remat::python {

void add_tiles(PyObject* module);

}  // namespace remat::python
