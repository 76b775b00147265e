// SPDX-License-Identifier: BSD-3-Clause

// What makes dry tensors and storages from nothing: kernels of remat_meta, registered by others.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>

#include <optional>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Kernels of the op of each name. Any thread. ValueError for another device of this kind or pinned
/// memory, NotImplementedError for a layout that is not strided.
struct REMAT_API DryFactories {
  static at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                          std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                          std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format);
  static at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                  std::optional<c10::ScalarType> dtype,
                                  std::optional<c10::Layout> layout,
                                  std::optional<c10::Device> device,
                                  std::optional<bool> pin_memory);

  /// Module::to() replaces the data of parameters, and is refused where this says no.
  static bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

  /// Memory of any size, at no address. Never destroyed.
  static c10::Allocator* allocator();

  /// Storages that are made without a tensor, as Python does to copy one.
  static c10::intrusive_ptr<c10::StorageImpl> make_storage(
      c10::StorageImpl::use_byte_size_t in_bytes, c10::SymInt size_bytes, c10::DataPtr data,
      c10::Allocator* allocator, bool resizable);
};

}  // namespace remat
