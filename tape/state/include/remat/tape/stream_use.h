// SPDX-License-Identifier: BSD-3-Clause

// Telling the allocator which stream reads memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// The op is about to run on the current streams: memory of its arguments is not used again before
/// these streams have got past it.
///
/// Note [Memory between streams]: plain autograd keeps what an op has saved until backward, so a
/// function may let go of a tensor that another stream has yet to read. A region drops it at once.
/// So where a region runs on several streams, the allocator is told of each op.
REMAT_API void note_stream_use(const OpCall& call);

/// The current stream reads `tensor`.
REMAT_API void note_stream_use(const at::Tensor& tensor);

}  // namespace remat
