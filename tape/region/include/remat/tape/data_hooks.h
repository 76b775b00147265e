// SPDX-License-Identifier: BSD-3-Clause

// Tensors that share memory and not their versions.
#pragma once

#include <c10/core/StorageImpl.h>

#include <remat/tape/export.h>

namespace remat {

/// Note [Data hooks]: `tensor.data` has a version counter of its own, and an assignment to it gives
/// a tensor other memory, both without an op. LibTorch does both through its VariableHooks, a table
/// of functions. This library puts a table of its own in that place as it is loaded: its functions
/// tell the scopes of the thread (OpObserver::after_data(), before_set_data()), and then call
/// LibTorch's.
///
/// Note [The op that makes a node]: a stale view (current_node.h) that as_strided() cannot make, as
/// `z.real`, is made once more by its op when somebody asks for its node. No code of the function
/// calls that op, and a replay, where other tensors are stale, need not call it. So no scope sees
/// that op.

/// Somebody has, or gets, a tensor on this memory with a version counter of its own. From any
/// thread.
REMAT_API void note_other_versions(const c10::StorageImpl* storage) noexcept;

/// False if no tensor on this memory has had a version counter of its own; true if one may have.
/// Costs one load; from any thread.
REMAT_API bool may_have_other_versions(const c10::StorageImpl* storage) noexcept;

}  // namespace remat
