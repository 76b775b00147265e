// SPDX-License-Identifier: BSD-3-Clause

// Tensors saved by nodes of an autograd graph, as Python's half of LibTorch exposes them.
#pragma once

#include <remat/inspect/saved_tensors_report.h>

namespace remat::python {

/// See VisitSaved. Call under the GIL. Nodes of C++ custom functions expose nothing.
void visit_saved(const GraphNode& node, const std::function<void(const at::Tensor&)>& visit);

}  // namespace remat::python
