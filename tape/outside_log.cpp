// SPDX-License-Identifier: BSD-3-Clause

// Watching storages from outside, and copying those that the region writes.
#include <remat/tape/outside_log.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "storage_bytes.h"

namespace remat {

OutsideStorage::OutsideStorage(const at::Tensor& tensor)
    : address_(memory_of(tensor)), meta_(tensor), version_(tensor) {
  if (!tensor.has_storage()) {
    tensor_.emplace(tensor.getIntrusivePtr());
    return;
  }
  const auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  storage_.emplace(storage);
  is_foreign_ = storage->allocator() == nullptr;
}

void OutsideStorage::keep_before_write(const at::Tensor& tensor) {
  if (kept_) return;
  const c10::InferenceMode normal(false);  // autograd saves no inference tensor
  const at::Tensor copy = clone_bytes(tensor.storage());
  kept_storage_ = HeldStorage(copy);
  kept_.emplace(copy, /*is_output=*/false);
}

at::Tensor OutsideStorage::unpack_kept() const {
  return kept_ ? kept_->unpack() : at::Tensor();
}

void OutsideStorage::check_unchanged(const at::Tensor& tensor, const std::string& where,
                                     const std::string& op) const {
  TORCH_CHECK(!version_.changed() && !version_.changed_in(tensor),
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: [",
              meta_.str(), "] ", version_.str(), ". ", where, ", op ", op,
              ": expected the tensor from outside the region as the forward read it. Do not write "
              "it between forward and backward, or pass a clone.");
}

Origin OutsideLog::add(const at::Tensor& tensor) {
  storages_.emplace_back(tensor);
  return Origin::outside(storages_.size() - 1);
}

bool OutsideLog::is_argument(Origin origin) const {
  return std::any_of(arguments_.begin(), arguments_.end(),
                     [&](Origin argument) { return argument.value() == origin.value(); });
}

bool OutsideLog::writes_argument(size_t i) const {
  return i < arguments_.size() && arguments_[i].is_outside() &&
         storages_[arguments_[i].number()].is_written();
}

}  // namespace remat
