// SPDX-License-Identifier: BSD-3-Clause

// Python's access to the reports of inspect/.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Adds memory_report(), the texts of the other reports, and CallTrace to `module`.
void add_reports(PyObject* module);

}  // namespace remat::python
