// SPDX-License-Identifier: BSD-3-Clause

// The position of a tensor's elements in its storage, without the storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

#include <remat/engine/export.h>

namespace remat {

/// Sizes, strides and offset in elements of `dtype`.
struct REMAT_API TensorLayout {
  TensorLayout() = default;
  /// `tensor` must have a layout: has_layout().
  explicit TensorLayout(const at::Tensor& tensor);

  /// A one-dimensional layout that covers a storage of `size_bytes`.
  static TensorLayout flat(size_t size_bytes, c10::ScalarType dtype);

  bool operator==(const TensorLayout&) const = default;

  /// Bytes from the beginning of the storage to the end of the last element.
  size_t bytes_spanned() const;

  /// True if the elements cover the first `size_bytes` of the storage without gaps.
  bool covers(size_t size_bytes) const;

  c10::SmallVector<int64_t, 4> sizes;
  c10::SmallVector<int64_t, 4> strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool conjugated = false;
  bool negated = false;
};

/// True for a strided tensor with integer sizes, because a storage and a TensorLayout describe only
/// such tensors. False for a tensor subclass (__torch_dispatch__), whose storage may be empty.
REMAT_API bool has_layout(const at::Tensor& tensor);

/// True if the storage of `tensor` has been shrunk (resize_(0)) and no longer holds the tensor.
REMAT_API bool is_freed(const at::Tensor& tensor);
inline constexpr const char* kMemoryFreed =
    "expected its memory as the forward left it, got a storage that was freed or made smaller "
    "since (untyped_storage().resize_()). ";
inline constexpr const char* kMemoryExchanged =
    "expected the memory that it had in the forward, got other memory (`.data = ...`, set_()). "
    "Exchange it before the forward or after backward, or copy into it then.";
inline constexpr const char* kMemoryExchangedInRegion =
    "expected a saved tensor to have its memory until the region ends, got one that was given "
    "other "
    "memory since (`.data = ...`): autograd would go on with that in silence, a replay with what "
    "was saved. Exchange it before the first op that uses it, or use another tensor.";
inline constexpr const char* kGiveMemoryBack =
    "Give the memory back before backward reads it, or do not free what backward needs.";

/// True if `tensor`, which must be strided, covers all of its storage without gaps.
REMAT_API bool covers_storage(const at::Tensor& tensor);

/// The layout of `tensor`, which must be strided, if it covers its storage; otherwise the flat
/// layout of the storage's bytes.
REMAT_API TensorLayout whole_layout(const at::Tensor& tensor);

/// Returns a tensor with this layout on `storage`, which may be a placeholder's, outside any graph.
REMAT_API at::Tensor lay_out(const c10::Storage& storage, const TensorLayout& layout);

}  // namespace remat
