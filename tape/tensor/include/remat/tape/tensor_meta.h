// SPDX-License-Identifier: BSD-3-Clause

// What two tensors must share to count as the same saved tensor, and the version autograd saw.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>

#include <remat/tape/export.h>

namespace remat {

/// What to do about a leaf that has been frozen or unfrozen.
inline constexpr const char* kGradChanged =
    "expected a tensor that requires a gradient or not as in the forward, got one that has been "
    "frozen or unfrozen since (requires_grad_()), in a backward with create_graph, whose graph "
    "would be another one. Do that before the forward or after backward.";

/// True in a backward with create_graph if `original` is a leaf that does not require a gradient as
/// it did.
REMAT_API bool is_grad_changed(const at::Tensor& original, bool requires_grad);

/// "float32", as PyTorch's Python users know it.
REMAT_API const char* dtype_name(c10::ScalarType dtype);

/// Shape, dtype, device and place in the graph (requires grad, leaf) of a tensor. Tensors without
/// plain sizes (nested, symbolic) have dtype and device only.
class REMAT_API TensorMeta {
 public:
  explicit TensorMeta(const at::Tensor& tensor);

  bool matches(const at::Tensor& tensor) const;

  /// As matches(), but does not compare the place in the graph.
  bool matches_data(const at::Tensor& tensor) const;

  bool requires_grad() const { return requires_grad_; }

  /// Empty without plain sizes.
  c10::ArrayRef<int64_t> sizes() const { return sizes_; }
  c10::ScalarType dtype() const { return dtype_; }
  c10::Device device() const { return device_; }

  /// "float32 [2, 3] on cpu"
  std::string str() const;

  /// "requires_grad on, not a leaf"
  std::string place_str() const;

 private:
  c10::SmallVector<int64_t, 4> sizes_;
  c10::ScalarType dtype_;
  c10::Device device_;
  bool has_sizes_;
  bool requires_grad_;
  bool is_leaf_;
};

/// What a tensor's versions are counted by: the same for those that share memory through views.
REMAT_API const void* version_counter_of(const at::Tensor& tensor);
REMAT_API const void* version_counter_of(const c10::VariableVersion& version);

/// True for a parameter and its views: a leaf that requires grad, whatever shape it is seen in.
REMAT_API bool is_parameter(const at::Tensor& tensor);

/// The version of a tensor when autograd saved it. Holds the tensor's version counter, not the
/// tensor.
///
/// Note [Writes without a version]: `tensor.data()` shares memory but has a counter of its own, and
/// some optimizers of LibTorch (SGD) write parameters through it. So for a parameter in CPU memory,
/// or a view of one, a few words spread over its storage are compared too: a step of an optimizer
/// changes nearly all of them. Of what a region has from outside the same is done whatever it is:
/// all bytes up to 4 KiB, a word of each 64th part of more.
class REMAT_API SavedVersion {
 public:
  explicit SavedVersion(const at::Tensor& tensor, bool is_from_outside = false);

  /// True if the tensor, or one that shares its memory, was written in place since.
  bool changed() const { return counter_.enabled() && counter_.current_version() != saved_; }

  /// True if `tensor` is the one that was saved, or shares its memory through views, and was
  /// written since, with or without a new version.
  bool changed_in(const at::Tensor& tensor) const;

  /// The counter of the tensor's versions; null if it has none.
  const void* counter() const;

  /// Of UnversionedWrites: the last write that had begun when it was saved.
  uint64_t writes() const { return writes_; }
  /// Address of the tensor that was saved, which may be gone.
  const void* tensor() const { return tensor_; }
  /// True if the op that saved it writes it too, and says so to nobody.
  bool is_written_by_op() const;

  /// True if `tensor` is the one that was saved, or shares its memory through views.
  bool is_of(const at::Tensor& tensor) const;
  /// From now on writes to `tensor`, which has the memory of the one that was saved, count as
  /// writes to that.
  void give_to(const at::Tensor& tensor) const;
  /// True if `tensor`, which has the memory of the one that was saved, has been written without a
  /// new version, as far as that is known: by way of a tensor with a counter of its own.
  bool has_other_bytes(const at::Tensor& tensor) const;
  /// The same of the strided tensor's storage, where somebody has copied its value since.
  bool has_other_bytes(const c10::Storage& storage) const;

  /// "is at version 2; expected version 1 instead"
  std::string str() const;

 private:
  c10::VariableVersion counter_;
  uint64_t writes_;
  const void* tensor_;
  uint32_t saved_;
  bool is_from_outside_;
  std::optional<uint64_t> sample_;
};

/// The beginning of autograd's error for a tensor written since it was saved, up to "instead. ":
/// people search for these words.
REMAT_API std::string modified_in_place(const TensorMeta& meta, const SavedVersion& version);

}  // namespace remat
