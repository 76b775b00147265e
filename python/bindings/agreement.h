// SPDX-License-Identifier: BSD-3-Clause

// Calls by which ranks compare their regions: see remat_meta._agreement.
#pragma once

#include <torch/csrc/python_headers.h>

#include "settings.h"

namespace remat::python {

/// Tells the agreement, if there is one, that a region of `function` is about to run, unless the
/// last region with these settings had the same function. Throws python_error.
void tell_agreement(const Settings& settings, PyObject* function);

/// Adds _set_agreement() to `module`.
void add_agreement(PyObject* module);

}  // namespace remat::python
