// SPDX-License-Identifier: BSD-3-Clause

// Metadata that two tensors must share to count as the same saved tensor, and saved versions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>

#include <remat/engine/export.h>

namespace remat {

/// Message for a leaf that was frozen or unfrozen.
inline constexpr const char* kGradChanged =
    "expected a tensor that requires a gradient or not as in the forward, got one that has been "
    "frozen or unfrozen since (requires_grad_()), in a backward with create_graph, whose graph "
    "would be another one. Do that before the forward or after backward.";

/// True in a backward with create_graph if `original` is a leaf whose requires_grad is no longer
/// `requires_grad`.
REMAT_API bool is_grad_changed(const at::Tensor& original, bool requires_grad);

/// Name of a dtype as in Python, such as "float32".
REMAT_API std::string dtype_name(c10::ScalarType dtype);

/// Shape, dtype, device and graph properties (requires_grad, is_leaf) of a tensor. The shape of a
/// nested tensor or of one with symbolic sizes is not stored and not compared.
class REMAT_API TensorMeta {
 public:
  explicit TensorMeta(const at::Tensor& tensor);

  bool matches(const at::Tensor& tensor) const;

  /// Like matches(), but ignores the graph properties.
  bool matches_data(const at::Tensor& tensor) const;

  bool requires_grad() const { return requires_grad_; }

  /// Empty if the shape is not stored.
  c10::ArrayRef<int64_t> sizes() const { return sizes_; }
  c10::ScalarType dtype() const { return dtype_; }
  c10::Device device() const { return device_; }

  /// Text such as "float32 [2, 3] on cpu".
  std::string str() const;

  /// The graph properties as text, such as "requires_grad on, not a leaf".
  std::string place_str() const;

 private:
  c10::SmallVector<int64_t, 4> sizes_;
  c10::ScalarType dtype_;
  c10::Device device_;
  bool has_sizes_;
  bool requires_grad_;
  bool is_leaf_;
};

/// Identifies a tensor's version counter, which is shared by tensors that share memory through
/// views.
REMAT_API const void* version_counter_of(const at::Tensor& tensor);
REMAT_API const void* version_counter_of(const c10::VariableVersion& version);

/// True for a leaf that requires grad, and for a view of such a leaf.
REMAT_API bool is_parameter(const at::Tensor& tensor);

/// The version of a tensor when autograd saved it. Holds the tensor's version counter, not the
/// tensor.
///
/// `tensor.data()` shares the tensor's memory but has its own version counter, and some optimizers
/// of LibTorch (SGD) write parameters through it. So for a parameter in CPU memory, or a view of
/// one, a few words spread over its storage are compared, too, because an optimizer step changes
/// nearly all of them. For tensors from outside a region, parameters or not, more is compared: all
/// bytes up to 4 KiB, or one word of each 64th part of a larger storage.
class REMAT_API SavedVersion {
 public:
  explicit SavedVersion(const at::Tensor& tensor, bool is_from_outside = false);

  /// True if the tensor, or one that shares its memory, was written in place since it was saved.
  bool changed() const { return counter_.enabled() && counter_.current_version() != saved_; }

  /// True if `tensor` is the saved tensor, or shares its memory through views, and was written
  /// since, with or without a new version.
  bool changed_in(const at::Tensor& tensor) const;

  /// The tensor's version counter; null if it has none.
  const void* counter() const;

  /// Number of the last write in UnversionedWrites that had begun when the tensor was saved.
  uint64_t writes() const { return writes_; }
  /// Address of the tensor that was saved, which may be gone.
  const void* tensor() const { return tensor_; }
  /// True if the op that saved the tensor also writes it, without a mark in the op's schema.
  bool is_written_by_op() const;

  /// True if `tensor` is the saved tensor, or shares its memory through views.
  bool is_of(const at::Tensor& tensor) const;
  /// From now on writes to `tensor`, which has the saved tensor's memory, count as writes to the
  /// saved tensor.
  void give_to(const at::Tensor& tensor) const;
  /// True if `tensor`, which has the saved tensor's memory, was written without a new version
  /// (through a tensor with its own version counter), as far as sampled bytes tell.
  bool has_other_bytes(const at::Tensor& tensor) const;
  /// Like has_other_bytes(tensor), for the storage of a strided tensor of which hooks keep a copy.
  bool has_other_bytes(const c10::Storage& storage) const;

  /// Text such as "is at version 2; expected version 1 instead".
  std::string str() const;

 private:
  c10::VariableVersion counter_;
  uint64_t writes_;
  const void* tensor_;
  uint32_t saved_;
  bool is_from_outside_;
  std::optional<uint64_t> sample_;
};

/// The beginning of autograd's error for a tensor written since it was saved, up to "instead. ".
/// People search for these words.
REMAT_API std::string modified_in_place(const TensorMeta& meta, const SavedVersion& version);

}  // namespace remat
