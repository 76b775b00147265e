// SPDX-License-Identifier: BSD-3-Clause

// What nodes of an autograd graph save, as Python's half of LibTorch shows it.
#pragma once

#include <remat/inspect/saved_tensors_report.h>

namespace remat::python {

/// See VisitSaved. Under the GIL. Nodes of C++ custom functions show nothing.
void visit_saved(const GraphNode& node, const std::function<void(const at::Tensor&)>& visit);

}  // namespace remat::python
