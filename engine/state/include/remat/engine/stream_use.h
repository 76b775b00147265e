// SPDX-License-Identifier: BSD-3-Clause

// Telling the allocator which streams read memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/engine/current_streams.h>
#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Call it before an op runs on the current streams, so that the allocator reuses the memory of the
/// op's arguments only after these streams have passed the op.
///
/// Note [Memory between streams]: plain autograd keeps saved tensors until backward, so a function
/// may release a tensor that another stream has yet to read. A region drops the tensor at once. So
/// where a region runs on several streams, each op is reported to the allocator.
REMAT_API void note_stream_use(const OpCall& call);

/// Reports that the current stream reads `tensor`.
REMAT_API void note_stream_use(const at::Tensor& tensor);

/// Note [Streams of kept values]: a replay begins by putting back what the region has kept, on the
/// streams on which the forward began. A kept copy may have been made on another stream, and the
/// region's caller has no reason to let the first streams wait for that stream. So remat lets the
/// first streams wait when the copy is made. A stream to which a replay's function switches waits
/// for what has been put back.
///
/// Lets replays, which begin on `first`, wait for this thread's current stream of `device`.
REMAT_API void let_replays_wait(c10::Device device, const CurrentStreams& first);

/// Lets this thread's current stream of `device` wait for `first`, on which a replay has begun.
REMAT_API void wait_for_start_of_replay(c10::Device device, const CurrentStreams& first);

}  // namespace remat
