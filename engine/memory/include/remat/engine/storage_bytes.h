// SPDX-License-Identifier: BSD-3-Clause

// Copying storages as bytes, and what is known of their memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <cstdint>

#include <remat/engine/export.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

/// Returns a uint8 tensor with a copy of all bytes of `storage`, equally aligned; the ops are
/// hidden from scopes. For a placeholder's storage, returns a tensor on `storage` itself, because
/// the bytes that a nested region keeps in a replay may never be read.
REMAT_API at::Tensor clone_bytes(const c10::Storage& storage);

/// Copies all bytes and saves the copy as autograd saves a tensor, so that the thread's scopes
/// decide where it is kept. Sets `held` to the copy's storage.
torch::autograd::SavedVariable keep_bytes(const c10::Storage& storage, HeldStorage& held);

/// Returns a new storage of `size_bytes` with `value` at `layout`; the ops are hidden from scopes.
REMAT_API c10::Storage copy_into_storage(const at::Tensor& value, const TensorLayout& layout,
                                         size_t size_bytes);

/// Alignment of a tensor whose memory has no address, as on devices other than the CPU and CUDA.
inline constexpr uint8_t kNoAlignment = 255;

/// Number of bytes from a multiple of 64 to the first byte of `storage`; 0 if not on the CPU.
size_t misalignment(const c10::Storage& storage);

/// Number of bytes from a multiple of 64 to the tensor's first element, or kNoAlignment.
REMAT_API uint8_t alignment_of(const at::Tensor& tensor);

/// Returns `value` with the strides and flags of `layout` and the given alignment; `value` itself
/// if it already has them. The offset may differ. Some kernels sum in another order if strides,
/// lazy conjugation or negation, or alignment differ. The ops are hidden.
REMAT_API at::Tensor with_layout(const at::Tensor& value, const TensorLayout& layout,
                                 uint8_t alignment);

/// Returns `value` on a storage of `size_bytes`, at `layout`; `value` itself if it already lies
/// there, which it does unless hooks have unpacked a copy of a kept tensor.
REMAT_API at::Tensor on_whole_storage(const at::Tensor& value, const TensorLayout& layout,
                                      size_t size_bytes);

/// Returns an uninitialised storage of `size_bytes`, which begins `skipped` bytes into the memory
/// that LibTorch allocates for it.
REMAT_API c10::Storage empty_storage(size_t size_bytes, c10::Device device, size_t skipped = 0);

/// Returns a storage of `size_bytes` without memory, for tensors that only show their shape. On the
/// device of placeholders LibTorch allocates memory, which cannot be read anyway.
c10::Storage shape_storage(size_t size_bytes, c10::Device device);

/// False for a storage on meta, such as a fake tensor's. Runs no code of a tensor's class.
bool has_memory(const c10::Storage& storage) noexcept;

/// False for storages that share memory until written (lazy clones), or have none (on meta).
REMAT_API bool has_own_memory(const c10::Storage& storage);

/// Like keep_bytes(), for `original`, a part of a storage. The copy has the part's layout, without
/// gaps and offset.
torch::autograd::SavedVariable keep_part(const at::Tensor& original, HeldStorage& held);
/// True while keep_part() saves its copy, which is no saved tensor of an op.
bool keeps_part();

/// Writes `value`, a copy of `part`, back to `storage`; the op is hidden.
REMAT_API void put_part(const c10::Storage& storage, const TensorLayout& part,
                        const at::Tensor& value);

/// True if both storages have memory and the memory overlaps.
REMAT_API bool overlap(const c10::Storage& a, const c10::Storage& b);

/// Copies all bytes of `from` to `to`, which must have the same size; the op is hidden.
REMAT_API void copy_bytes(const c10::Storage& from, const c10::Storage& to);

/// Returns `like` on another storage, outside any graph, with its own version counter.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like);

}  // namespace remat
