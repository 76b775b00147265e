// SPDX-License-Identifier: BSD-3-Clause

// Graphs that a compiler has made machine code of, as one op each.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [Compiled graphs]: what inductor makes of a graph takes its memory without the dispatcher,
/// and writes it in kernels of its own. Seen op by op, tensors would come from nowhere, and writes
/// would not be seen at all. So in a region the graph is run by an op, with nothing seen in it:
///
///   remat::compiled_graph(PyObject graph, str code, Tensor[] read, Tensor(a!)[] written,
///                         Scalar[] numbers) -> (Tensor[], Scalar[])
///
/// which regions log, tapes call again, and policies may SAVE, as any other op. `graph` is called
/// with the other three; it is held by the tapes that call it. `code` says what it computes: the
/// same graph compiled once more has the same, and in a replay another one is a difference.
///
/// Adds what _compiled_graphs.py uses. Throws python_error.
void add_compiled_graph(PyObject* module);

}  // namespace remat::python
