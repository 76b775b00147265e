// SPDX-License-Identifier: BSD-3-Clause

// Factories of dry tensors and storages: kernels of remat_meta, registered elsewhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>

#include <optional>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Kernels of the ops with these names. Usable from any thread. They throw ValueError for a second
/// device or pinned memory, NotImplementedError for a layout that is not strided.
struct REMAT_API DryFactories {
  static at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                          std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                          std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format);
  static at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                  std::optional<c10::ScalarType> dtype,
                                  std::optional<c10::Layout> layout,
                                  std::optional<c10::Device> device,
                                  std::optional<bool> pin_memory);

  /// Module::to() replaces the data of parameters only if this returns true.
  static bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

  /// Allocates memory of any size, at no address. Never destroyed.
  static c10::Allocator* allocator();

  /// Makes a storage without a tensor, as Python does to copy one.
  static c10::intrusive_ptr<c10::StorageImpl> make_storage(
      c10::StorageImpl::use_byte_size_t in_bytes, c10::SymInt size_bytes, c10::DataPtr data,
      c10::Allocator* allocator, bool resizable);
};

}  // namespace remat
