// SPDX-License-Identifier: BSD-3-Clause

// Storages as plain bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <cstdint>

#include <remat/tape/held_storage.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// A tensor of uint8 with a copy of all bytes of `storage`, aligned as they are; nobody sees the
/// ops. On the storage itself if that is a placeholder's: in a replay, what a region inside keeps
/// may never be read.
at::Tensor clone_bytes(const c10::Storage& storage);

/// Keeps a copy of all bytes as the scopes of the thread want it; `held` becomes its storage.
torch::autograd::SavedVariable keep_bytes(const c10::Storage& storage, HeldStorage& held);

/// A new storage of `size_bytes` in which `value` lies as `layout` says; nobody sees the ops.
c10::Storage copy_into_storage(const at::Tensor& value, const TensorLayout& layout,
                               size_t size_bytes);

/// The alignment of a tensor whose memory has no address, as on devices other than the CPU and
/// CUDA.
inline constexpr uint8_t kNoAlignment = 255;

/// How many bytes after a multiple of 64 the memory begins; 0 if it is not on the CPU.
size_t misalignment(const c10::Storage& storage);

/// How many bytes after a multiple of 64 a tensor begins, or kNoAlignment.
uint8_t alignment_of(const at::Tensor& tensor);

/// `value` laid out as `layout` says, but for the offset, and aligned so; itself if it is. Some
/// kernels sum in another order if strides, a lazy conjugation or negation, or the alignment
/// differ. Nobody sees the ops.
at::Tensor with_layout(const at::Tensor& value, const TensorLayout& layout, uint8_t alignment);

/// `value` on a storage of `size_bytes`, at `layout`; itself if it lies so. Hooks may have brought
/// back a copy of a kept one.
at::Tensor on_whole_storage(const at::Tensor& value, const TensorLayout& layout, size_t size_bytes);

/// A storage of `size_bytes` without values, which begins `skipped` bytes into the memory that
/// LibTorch gives for it.
c10::Storage empty_storage(size_t size_bytes, c10::Device device, size_t skipped = 0);

/// A storage of that size without memory, for tensors of which only the shape is looked at. It has
/// memory where LibTorch gives none that can be read either: on the device of placeholders.
c10::Storage shape_storage(size_t size_bytes, c10::Device device);

/// False for a storage on meta, such as a fake tensor's; looked at without asking the tensor.
bool has_memory(const c10::Storage& storage) noexcept;

/// False for what shares memory until it is written (a lazy clone), or has none (on meta).
bool has_own_memory(const c10::Storage& storage);

/// As keep_bytes(), for a part; `original`: that part of the storage. The copy is laid out like it
/// but for gaps and the offset.
torch::autograd::SavedVariable keep_part(const at::Tensor& original, HeldStorage& held);
/// True while keep_part() saves its copy, of which no op knows.
bool keeps_part();

/// Writes `value`, a copy of that part, to its place in `storage`; nobody sees the op.
void put_part(const c10::Storage& storage, const TensorLayout& part, const at::Tensor& value);

/// True if both are there, have memory, and share some of it.
bool overlap(const c10::Storage& a, const c10::Storage& b);

/// Copies all bytes of `from` to `to`, of the same size; nobody sees the op.
void copy_bytes(const c10::Storage& from, const c10::Storage& to);

/// `like` in another storage, outside any graph, with a version of its own.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like);

}  // namespace remat
