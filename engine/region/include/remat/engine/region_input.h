// SPDX-License-Identifier: BSD-3-Clause

// A tensor argument of a region, kept as long as the region has live slots.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <remat/engine/current_node.h>
#include <remat/engine/export.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// The argument as it was, and facts that later tell whether it has changed.
///
/// Made before its region is entered. Inside an outer region, the outer region's slots hold the
/// data, not this object. This object owns no part of the argument's graph, because the region's
/// nodes own that graph if the region differentiates the argument.
class REMAT_API RegionInput {
 public:
  RegionInput(size_t position, const at::Tensor& tensor);

  /// Returns the tensor for a replay: the argument's data, at the argument's position in its graph.
  /// May replay outer regions. If the region itself wrote the argument, `shadow` is memory with the
  /// old value. Otherwise throws autograd's in-place error, with `region_label`, if the argument
  /// has been written since the region was entered.
  at::Tensor replayed(const std::string& region_label, const c10::Storage& shadow) const;

  /// Call it when the forward has ended. Records facts that are known only at that time.
  void finish_forward();

  /// Null for an undefined argument.
  const TensorMeta* meta() const { return meta_ ? &*meta_ : nullptr; }
  size_t position() const { return position_; }

  /// The argument's layout, if known. Hooks may return the argument with another layout.
  const std::optional<TensorLayout>& layout() const { return layout_; }
  /// Bytes by which `tensor`, from replayed(), begins earlier in its memory than the argument did.
  int64_t moved(const at::Tensor& tensor) const;
  bool is_leaf_with_grad() const { return kind_ == Kind::kLeaf; }

  /// The argument's memory, as long as it is alive; see HeldStorage.
  const HeldStorage& storage() const { return storage_; }

  /// Throws if the argument has been written in place since the region was entered.
  void check_not_written_inside(const std::string& region_label) const;

 private:
  at::Tensor original() const;
  at::Tensor living_leaf(const std::string& region_label) const;
  at::Tensor unpacked(const std::string& region_label, const c10::Storage& shadow) const;
  bool is_exchanged(const at::Tensor& leaf) const;
  void check_unchanged(bool changed, const std::string& region_label) const;
  std::string describe() const;

  enum class Kind : uint8_t {
    kNoGrad,
    kLeaf,  ///< A leaf that requires grad. kNonLeaf and kStaleView require grad, too.
    kNonLeaf,
    kStaleView,  ///< A view that had no node yet: Note [When a view gets its node].
  };
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  size_t position_;
  Kind kind_ = Kind::kNoGrad;
  at::Tensor inference_tensor_;  // An inference tensor, which autograd refuses to save.
  torch::autograd::SavedVariable data_;
  std::optional<WeakTensor> tensor_;   // The argument itself, unless it is a non-leaf.
  std::optional<bool> requires_grad_;  // At the forward's end, if the argument has no node.
  std::optional<GraphPlace> place_;    // For kNonLeaf and kStaleView.
  std::optional<TensorMeta> meta_;
  std::optional<TensorLayout> layout_;  // Unset for an inference tensor.
  uint8_t alignment_ = 0;               // See alignment_of().
  std::optional<SavedVersion> version_;
  HeldStorage storage_;
};

}  // namespace remat
