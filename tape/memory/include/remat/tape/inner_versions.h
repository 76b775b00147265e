// SPDX-License-Identifier: BSD-3-Clause

// Whether the tensors in a tensor have been written.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <string>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

/// The tensors in a tensor of a Python class of its own (__torch_dispatch__), as they were when the
/// tensor was met; none for any other tensor. The version of the outer tensor does not tell of
/// writes to the tensors in it. Holds no memory.
class REMAT_API InnerVersions {
 public:
  InnerVersions() = default;
  explicit InnerVersions(const at::Tensor& tensor);

  /// The memories of those of `inner` that are watched: of plain tensors.
  static std::vector<const void*> memories(c10::ArrayRef<at::Tensor> inner);
  /// Of those that it was made with.
  std::vector<const void*> memories() const;
  /// True if these are `memories`, in order.
  bool have(c10::ArrayRef<const void*> memories) const;

  /// True if one of them has been written since, as far as versions tell.
  bool changed() const;

  /// Throws, with `where`, if the tensors in `tensor` have been written, freed or exchanged since.
  /// `may_be_copy`: it may hold copies of them, which are as they were. Runs code of the class.
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
