// SPDX-License-Identifier: BSD-3-Clause

// Pairs of hooks on PyTorch's own stack that are no place to keep tensors in.
#pragma once

#include <c10/core/SafePyObject.h>

#include <remat/tape/export.h>

namespace remat {

/// True if `pack` belongs to a pair that keeps nothing and runs code again when it unpacks.
///
/// Note [Checkpoints of PyTorch inside a region]: torch.utils.checkpoint is such pairs. What it is
/// given it counts, and makes again: a region inside which it is called leaves that to it, as plain
/// code does with all effects (statistics of batch norm are written twice). It gets nothing that
/// SAVE calls keep, which it would not find again.
using RecomputingPair = bool (*)(const c10::SafePyObject& pack);

/// Installs the test. Null, as at first: no pair is one. On any thread, before the first region.
REMAT_API void set_recomputing_pair(RecomputingPair test);

REMAT_API bool is_recomputing_pair(const c10::SafePyObject& pack);

}  // namespace remat
