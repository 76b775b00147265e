// SPDX-License-Identifier: BSD-3-Clause

// What modules that shard their weights tell regions.
#pragma once

#include <Python.h>

namespace remat::python {

/// Adds _call_unseen() and _note_gathered() to the extension module.
void add_sharded_modules(PyObject* module);

/// Before a region: once FSDP has been imported, it is told what to hide from regions.
void tell_fsdp_of_regions();

}  // namespace remat::python
