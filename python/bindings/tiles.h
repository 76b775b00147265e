// SPDX-License-Identifier: BSD-3-Clause

// What tiled() of Python calls: see remat/backend/tiled.h.
#pragma once

#include <Python.h>

namespace remat::python {

void add_tiles(PyObject* module);

}  // namespace remat::python
