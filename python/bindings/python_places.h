// SPDX-License-Identifier: BSD-3-Clause

// Which line of Python runs.
#pragma once

namespace remat::python {

/// From then on recorders can ask.
void find_python_places();

}  // namespace remat::python
