// SPDX-License-Identifier: BSD-3-Clause

// Hook pairs on PyTorch's own stack that recompute tensors instead of keeping them.
#pragma once

#include <c10/core/SafePyObject.h>

#include <remat/tape/export.h>

namespace remat {

/// True if `pack` belongs to a pair that keeps nothing and runs code again to unpack.
///
/// Note [Checkpoints of PyTorch inside a region]: torch.utils.checkpoint uses such pairs. It counts
/// the tensors that it is given, and recomputes them: a region in which it is called leaves that to
/// it, with all side effects that this has in plain code (batch norm's statistics are written
/// twice). It gets no tensor that SAVE calls keep, since it would not find that again.
using RecomputingPair = bool (*)(const c10::SafePyObject& pack);

/// Installs the test; null, the default, recognises no pair. Usable from any thread, before the
/// first region.
REMAT_API void set_recomputing_pair(RecomputingPair test);

REMAT_API bool is_recomputing_pair(const c10::SafePyObject& pack);

}  // namespace remat
