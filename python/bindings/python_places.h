// SPDX-License-Identifier: BSD-3-Clause

// Source places of Python code.
#pragma once

namespace remat::python {

/// Makes Python's source places available to recorders.
void find_python_places();

}  // namespace remat::python
