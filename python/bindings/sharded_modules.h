// SPDX-License-Identifier: BSD-3-Clause

// The interface between regions and modules that shard their weights.
#pragma once

#include <Python.h>

namespace remat::python {

/// Adds _call_unseen() and _note_gathered() to the extension module.
void add_sharded_modules(PyObject* module);

/// Call before a region: once FSDP has been imported, tells it what to hide from regions.
void tell_fsdp_of_regions();

}  // namespace remat::python
