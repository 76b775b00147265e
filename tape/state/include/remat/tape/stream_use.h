// SPDX-License-Identifier: BSD-3-Clause

// Telling the allocator which streams read memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Call it before an op runs on the current streams: the allocator reuses the memory of the op's
/// arguments only after these streams have passed the op.
///
/// Note [Memory between streams]: plain autograd keeps saved tensors until backward, so a function
/// may release a tensor that another stream has yet to read. A region drops the tensor at once. So
/// where a region runs on several streams, each op is reported to the allocator.
REMAT_API void note_stream_use(const OpCall& call);

/// Reports that the current stream reads `tensor`.
REMAT_API void note_stream_use(const at::Tensor& tensor);

}  // namespace remat
