// SPDX-License-Identifier: BSD-3-Clause

// What remat installs in torch, and when.
//
// Note [First use]: `import remat_meta` changes nothing outside of the package. The first call that
// makes a region or a named call makes torch.func.functional_call and torch.compile known to remat
// and starts the recordings that the environment requests: it comes before the region runs and
// before a compiler traces it. The first region that runs installs the rest. _install.py has the
// Python half. Each step costs a test of a flag once it is done.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Call before a region or a named call is made. Throws python_error.
void on_first_use();

/// Call before a region runs. Throws python_error.
void before_first_region();

/// Makes checkpoint(), region(), native_op() and op() of the module call on_first_use(), and lets
/// torch's compiler trace that. Throws python_error.
void add_makers(PyObject* module);

}  // namespace remat::python
