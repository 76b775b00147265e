// SPDX-License-Identifier: BSD-3-Clause

// Installs in torch what remat needs there, at the first use.
//
// Note [First use]: `import remat_meta` changes nothing outside of the package. The first call of
// an entry, such as checkpoint(), makes torch.func.functional_call and torch.compile known to remat
// and starts the recordings that the environment requests. An entry is called before any region
// runs and before a compiler traces one. The first region that runs installs the rest. _install.py
// has the Python half. Each step costs a test of a flag once it is done.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Call before a region runs. Throws python_error.
void before_first_region();

/// Makes the functions of the module that users call entries, and adds _make_entry(function), which
/// does this for functions of Python. Throws python_error.
void add_entries(PyObject* module);

}  // namespace remat::python
