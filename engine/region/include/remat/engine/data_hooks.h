// SPDX-License-Identifier: BSD-3-Clause

// Hooks on tensor.data, which makes tensors that share memory but not version counters. Also hands
// old values to the regions that have read what an op is about to write.
#pragma once

#include <c10/core/StorageImpl.h>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Note [Data hooks]: `tensor.data` has its own version counter, and an assignment to it gives a
/// tensor other memory, both without an op. LibTorch implements both in its VariableHooks, a table
/// of functions. The first region installs a table of remat's own, whose functions notify the
/// thread's scopes (OpObserver::after_data(), before_set_data()), and call LibTorch's. A `data`
/// tensor from before the first region is recognised when it is written, by its version counter.
///
/// Note [The op that makes a node]: when somebody asks a stale view (current_node.h) for its node,
/// and as_strided() cannot make the view (`z.real`), autograd runs the view's op once more. No code
/// of the function calls that op, and a replay, in which other tensors are stale, need not call
/// it. So no scope sees that op.

/// Installs the table, once in the process. Usable from any thread.
REMAT_API void install_data_hooks();

/// Notes that a tensor on this memory has, or gets, its own version counter. Thread-safe.
REMAT_API void note_other_versions(const c10::StorageImpl* storage) noexcept;

/// False if no tensor on this memory has got a version counter of its own since the first region;
/// true if one may have. Costs one load; usable from any thread.
REMAT_API bool may_have_other_versions(const c10::StorageImpl* storage) noexcept;

/// Call it before an op writes arguments: hands the old bytes to the regions that this thread has
/// closed and that have read them. See Note [Writes after the region].
REMAT_API void hand_to_readers(const OpCall& call);

}  // namespace remat
