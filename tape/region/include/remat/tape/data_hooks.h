// SPDX-License-Identifier: BSD-3-Clause

// Tensors that share memory and not their versions.
#pragma once

#include <c10/core/StorageImpl.h>

#include <remat/tape/export.h>

namespace remat {

/// Note [Data hooks]: `tensor.data` has a version counter of its own, and an assignment to it gives
/// a tensor other memory, both without an op. LibTorch asks its VariableHooks for them; ours, which
/// this library puts in their place as it is loaded, tell the scopes of the thread
/// (Scope::after_data(), before_set_data()) and do what LibTorch's do.
///
/// Note [The op that makes a node]: a stale view (current_node.h) that as_strided() cannot make, as
/// `z.real`, is made once more by its op when somebody asks for its node. No code of the function
/// calls that op, and a replay, where other tensors are stale, need not; so it is nobody's.

/// Somebody has, or gets, a tensor on this memory with a version counter of its own. From any
/// thread.
REMAT_API void note_other_versions(const c10::StorageImpl* storage) noexcept;

/// False: nobody has. True: somebody may, or had. One load; from any thread.
REMAT_API bool may_have_other_versions(const c10::StorageImpl* storage) noexcept;

}  // namespace remat
