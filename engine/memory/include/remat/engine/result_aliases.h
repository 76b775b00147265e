// SPDX-License-Identifier: BSD-3-Clause

// Tensors whose memory is exchanged through `data`, and region results written through `data`.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <remat/engine/export.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

inline constexpr const char* kResultChanged =
    "expected the tensor as the forward left it, got a region's result that was written by way of "
    "another tensor with versions of its own (made by `.data`) after the region: autograd would go "
    "on with the new values in silence, a replay with those that were saved. Write it with "
    "gradients off (`with torch.no_grad(): y.mul_(2)`), which autograd "
    "notices, or write a clone().";

/// Note [Results by way of data]: remat does not observe the ops that run after a region. But
/// reading `y.data` of a result calls LibTorch's VariableHooks (Note [Data hooks]) before anybody
/// can write through it. The call hashes the result's bytes, and the hash gets the next
/// number of UnversionedWrites. When backward asks for a tensor that was saved before that number,
/// the bytes are compared with the hash, unless the memory has been freed. On a GPU hashing waits
/// for the device and copies up to 1 MiB of elements, spread over the tensor, to the host; programs
/// that never read `data` do not pay.

// These functions are usable from any thread.

/// Notes the results that a region returns.
REMAT_API void note_results(c10::ArrayRef<at::Tensor> results) noexcept;

/// False if no region has returned a tensor on the memory of `tensor`.
REMAT_API bool may_be_result(const at::Tensor& tensor) noexcept;

/// Call it before somebody gets a tensor with its own version counter on the memory of `result`.
REMAT_API void before_result_alias(const at::Tensor& result);

/// True if `saved` is a region's result, or shares memory with one through views, and has been
/// changed since it was saved, through a tensor with its own version counter.
REMAT_API bool changed_by_alias(const SavedVersion& saved);

/// Note [Exchanged memory]: autograd saves an op's argument as the tensor itself. After `w.data =
/// other` autograd goes on with the new memory, without an error. A replay, a kept value and what
/// hooks have copied have the values of the old memory. LibTorch's VariableHooks report each
/// exchange, in regions and elsewhere. So remat notes when each tensor was exchanged last, and code
/// that has kept a tensor asks whether it was exchanged since. Because the old memory is not noted,
/// a tensor that got it back counts as exchanged, too.
enum class MemoryNow {
  kThere,
  kGivenUp,    ///< The tensor has no elements any more; holders of a copy may use the copy.
  kElsewhere,  ///< The tensor has other memory, or another layout in its memory.
};

/// Notes that `tensor`, which is defined and has versions, has got other memory.
REMAT_API void note_exchange(const at::Tensor& tensor);

/// Says whether the saved tensor still has its memory. An exchange of its views does not count.
REMAT_API MemoryNow memory_now(const SavedVersion& saved);

}  // namespace remat
