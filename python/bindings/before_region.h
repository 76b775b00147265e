// SPDX-License-Identifier: BSD-3-Clause

// Work before a region runs: installation in torch, and the comparison of ranks.
//
// Note [First use]: `import remat_meta` changes nothing outside of the package. An entry is a
// function with which users begin, such as checkpoint(). Users call an entry before any region runs
// and before a compiler traces one. The first call patches torch.func.functional_call and
// torch.compile so that regions notice them, and starts the recordings that the environment
// requests. The first region that runs installs the rest. _install.py has the Python half. Once all
// is installed, a call only tests a flag.
#pragma once

#include <torch/csrc/python_headers.h>

#include "settings.h"

namespace remat::python {

/// Call before a region of `function` runs. Installs what remat needs in torch, lets ranks compare
/// their regions, and hides from regions the ops by which FSDP gathers and frees weights: see
/// remat_meta._install, _agreement and _fsdp. Throws python_error.
void before_region(const Settings& settings, PyObject* function);

}  // namespace remat::python
