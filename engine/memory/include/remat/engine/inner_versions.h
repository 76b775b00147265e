// SPDX-License-Identifier: BSD-3-Clause

// Detecting writes to the inner tensors of a tensor subclass.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// The inner tensors of a tensor of a Python class (__torch_dispatch__), as they were at
/// construction; empty for any other tensor. The outer tensor's version does not change when inner
/// tensors are written. Holds no memory.
class REMAT_API InnerVersions {
 public:
  InnerVersions() = default;
  explicit InnerVersions(const at::Tensor& tensor);

  /// Memory addresses of those in `inner` that are neither subclasses nor inference tensors.
  static std::vector<const void*> memories(c10::ArrayRef<at::Tensor> inner);
  /// Memory addresses of the inner tensors at construction.
  std::vector<const void*> memories() const;
  /// True if `memories` equals this object's memories(), in order.
  bool have(c10::ArrayRef<const void*> memories) const;

  /// True if an inner tensor has been written since construction, as far as versions tell.
  bool changed() const;

  /// Throws, with `where`, if the inner tensors of `tensor` have been written, freed or exchanged
  /// since construction. `may_be_copy`: inner tensors on other memory pass, as copies.
  /// Runs code of the class.
  void check_unchanged(const at::Tensor& tensor, bool may_be_copy,
                       c10::function_ref<std::string()> where) const;

 private:
  struct Inner {
    const void* memory;
    TensorMeta meta;
    SavedVersion version;
  };
  std::vector<Inner> all_;
};

}  // namespace remat
