// SPDX-License-Identifier: BSD-3-Clause

// Graphs that a compiler turned into machine code, as one op each.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [Compiled graphs]: the code that inductor generates for a graph allocates memory without
/// the dispatcher and writes it in kernels of its own. Seen op by op, tensors would come from
/// nowhere, and writes would be missed. So in a region the graph is run by an op, without
/// interception in it:
///
///   remat::compiled_graph(PyObject graph, str code, Tensor[] read, Tensor(a!)[] written,
///                         Scalar[] numbers) -> (Tensor[], Scalar[])
///
/// Regions log this op, tapes replay it, and policies may SAVE it, as any other op. `graph` is
/// called with the other three arguments; the tapes that call it hold it. `code` identifies what it
/// computes: recompiling the same graph gives the same `code`, and a replay with another one
/// differs.
///
/// Adds the functions that _compiled_graphs.py uses. Throws python_error.
void add_compiled_graph(PyObject* module);

}  // namespace remat::python
