// SPDX-License-Identifier: BSD-3-Clause

// Keeping a region's tensor arguments, and giving them to its replay.
#include <remat/engine/op_observer.h>
#include <remat/engine/region_input.h>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <remat/engine/current_node.h>
#include <remat/engine/op_call.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>

#include "given_values.h"

namespace remat {
namespace {

bool has_plain_strides(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.is_nested();
}

}  // namespace

RegionInput::RegionInput(size_t position, const at::Tensor& tensor) : position_(position) {
  if (!tensor.defined()) return;
  meta_.emplace(tensor);
  version_.emplace(tensor, /*is_from_outside=*/true);
  storage_ = HeldStorage(tensor);
  if (tensor.is_inference()) {
    inference_tensor_ = tensor;
    return;
  }
  if (has_plain_strides(tensor)) {
    layout_.emplace(tensor);
    alignment_ = alignment_of(tensor);
  }
  const SavedOriginalGuard original(tensor);
  data_ = torch::autograd::SavedVariable(variable_data(tensor), /*is_output=*/false);
  if (tensor.requires_grad()) {
    // Stale views are checked first, because without a node they look like leaves.
    kind_ = is_stale_view(tensor) ? Kind::kStaleView
            : tensor.is_leaf()    ? Kind::kLeaf
                                  : Kind::kNonLeaf;
  }
  if (kind_ == Kind::kStaleView) place_.emplace();
  if (kind_ == Kind::kNonLeaf) {
    place_.emplace(tensor);
  } else {
    tensor_.emplace(tensor.getIntrusivePtr());
  }
}

/// The argument itself if it is still alive, and either is a leaf or requires no gradient.
at::Tensor RegionInput::original() const {
  const bool is_kept = tensor_ && kind_ != Kind::kStaleView;
  return is_kept ? at::Tensor(tensor_->lock()) : at::Tensor();
}

void RegionInput::finish_forward() {
  // Read after the function has run, because functions may call requires_grad_(), also in a replay.
  if (const at::Tensor now = original(); now.defined()) requires_grad_ = now.requires_grad();
  if (!tensor_ || kind_ != Kind::kStaleView) return;
  const at::Tensor tensor(tensor_->lock());
  tensor_.reset();
  if (!tensor.defined() || is_stale_view(tensor)) return;
  place_.emplace(tensor);
}

at::Tensor RegionInput::replayed(const std::string& region_label,
                                 const c10::Storage& shadow) const {
  if (!meta_) return {};
  if (inference_tensor_.defined()) {
    TORCH_CHECK(storage_.address() == memory_of(inference_tensor_), "[replay] ", region_label, ", ",
                describe(), ": ", kMemoryExchanged);
    return inference_tensor_;
  }
  check_unchanged(!shadow && version_->changed(), region_label);
  TORCH_CHECK(!requires_grad_ || !is_grad_changed(original(), *requires_grad_), "[replay] ",
              region_label, ", ", describe(), ": ", kGradChanged);
  if (is_leaf_with_grad() && !shadow) {
    if (at::Tensor leaf = living_leaf(region_label); leaf.defined()) return leaf;
  }
  at::Tensor tensor = unpacked(region_label, shadow);
  if (is_leaf_with_grad()) tensor.set_requires_grad(true);
  if (place_) place_->give_to(tensor);
  return tensor;
}

/// The leaf itself, if it is alive, because the function may also reach the leaf in another way.
at::Tensor RegionInput::living_leaf(const std::string& region_label) const {
  const at::Tensor leaf(tensor_->lock());
  if (!leaf.defined()) return leaf;
  check_unchanged(version_->changed_in(leaf), region_label);
  TORCH_CHECK(!is_exchanged(leaf), "[replay] ", region_label, ", ", describe(), ": ",
              kMemoryExchanged);
  return leaf;
}

/// Returns the argument's data, outside any graph; on `shadow`, if that is set.
at::Tensor RegionInput::unpacked(const std::string& region_label,
                                 const c10::Storage& shadow) const {
  at::Tensor tensor = tensor_data(data_.unpack());
  // An empty tensor has nothing to shadow, and a write to it must not count as a write to the kept
  // tensor.
  if (has_plain_strides(tensor) && tensor.numel() == 0) tensor = variable_data(tensor);
  if (shadow) {
    tensor = view_storage(shadow, tensor);
    if (layout_ && has_plain_strides(tensor)) {
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), layout_->strides,
                                                          layout_->offset);
    }
    return tensor;
  }
  const bool is_same_memory = storage_.address() && storage_.address() == memory_of(tensor);
  check_unchanged(is_same_memory && version_->has_other_bytes(tensor), region_label);
  const bool is_copied = !is_same_memory && has_layout(tensor);
  check_unchanged(is_copied && version_->has_other_bytes(storage_.lock()), region_label);
  if (is_copied) GivenValues::check_argument(memory_of(tensor));
  // Hooks may return the argument with other strides or another alignment, with which ops may round
  // differently.
  const bool has_place = layout_ && has_layout(tensor) && tensor.sizes() == layout_->sizes;
  if (!has_place) return tensor;
  const at::Tensor there = with_layout(tensor, *layout_, alignment_);
  if (!there.is_same(tensor)) OpObserver::all_adopt(there);
  return there;
}

/// True if the leaf is on other memory than at the beginning of the region. False for a leaf whose
/// memory was freed, because the op that reads it reports that.
bool RegionInput::is_exchanged(const at::Tensor& leaf) const {
  const bool has_memory = leaf.has_storage() && !is_freed(leaf);
  const bool had_memory = !has_layout(leaf) || c10::multiply_integers(meta_->sizes()) > 0;
  const bool has_left = memory_now(*version_) == MemoryNow::kElsewhere;
  return has_memory && had_memory && (has_left || storage_.address() != memory_of(leaf));
}

int64_t RegionInput::moved(const at::Tensor& tensor) const {
  if (!layout_ || !tensor.defined() || !has_layout(tensor)) return 0;
  return (layout_->offset - tensor.storage_offset()) * static_cast<int64_t>(tensor.itemsize());
}

void RegionInput::check_unchanged(bool changed, const std::string& region_label) const {
  TORCH_CHECK(!changed, modified_in_place(*meta_, *version_), "[replay] ", region_label, ", ",
              describe(),
              ": expected the argument as the forward got it. Do not write it between forward and "
              "backward, or pass a clone.");
}

void RegionInput::check_not_written_inside(const std::string& region_label) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !version_ || !version_->changed(), "[checkpoint] ", region_label, ", ", describe(),
      ": expected an argument that the region only reads, got one that it wrote in place (it ",
      version_ ? version_->str() : "",
      "); its replay would start from the new value. Write to a clone, or write before the "
      "region.");
}

std::string RegionInput::describe() const {
  return c10::str("tensor argument ", position_, " (", meta_->str(), ")");
}

}  // namespace remat
