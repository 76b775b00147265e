// SPDX-License-Identifier: BSD-3-Clause

// Watching storages from outside, and copying those that the region writes.
#include <remat/tape/outside_log.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <remat/tape/current_node.h>
#include <remat/tape/tensor_layout.h>

#include "storage_bytes.h"
#include "tensor_hash.h"

namespace remat {
namespace {

/// 0 if they are not to be compared.
uint64_t hash_of_bytes(const c10::Storage& storage) {
  const bool is_compared =
      storage.device().is_cpu() && storage.nbytes() <= OutsideStorage::kMaxCompared;
  if (!is_compared) return 0;
  return hash_of(lay_out(storage, TensorLayout::flat(storage.nbytes(), c10::kByte)));
}

}  // namespace

OutsideStorage::OutsideStorage(const at::Tensor& tensor)
    : address_(memory_of(tensor)),
      tensor_(tensor.getIntrusivePtr()),
      meta_(tensor),
      version_(tensor) {
  if (!tensor.has_storage()) return;
  storage_.emplace(weak_storage(tensor));
  is_foreign_ = tensor.storage().allocator() == nullptr;
  if (is_foreign_ && !tensor.requires_grad()) hash_ = hash_of_bytes(tensor.storage());
}

bool OutsideStorage::has_bytes_of(const c10::Storage& storage) const {
  return hash_ == 0 || hash_ == hash_of_bytes(storage);
}

void OutsideStorage::keep_before_write(const at::Tensor& tensor) {
  if (kept_) return;
  kept_.emplace(keep_bytes(tensor.storage(), kept_storage_));
  // Its views get theirs from it: see ReplayOps::shadow_of().
  const at::Tensor written = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  written_.emplace(written.getIntrusivePtr());
  place_ = GraphPlace(written);
}

const GraphPlace* OutsideStorage::place_before_write(const at::Tensor& tensor) const {
  const bool is_written =
      written_ && written_->_unsafe_get_target() == tensor.unsafeGetTensorImpl();
  return is_written ? &place_ : nullptr;
}

at::Tensor OutsideStorage::unpack_kept() const {
  return kept_ ? kept_->unpack() : at::Tensor();
}

void OutsideStorage::check_unchanged(const at::Tensor& tensor,
                                     c10::function_ref<std::string()> where) const {
  TORCH_CHECK(!version_.changed() && !version_.changed_in(tensor),
              modified_in_place(meta_, version_), where(),
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

std::optional<size_t> OutsideLog::whole_argument(size_t number) const {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (whole_[i] && arguments_[i].value() == Origin::outside(number).value()) return i;
  }
  return std::nullopt;
}

void OutsideLog::add_captured(const at::Tensor& tensor) {
  const auto is_it = [&](const OutsideStorage::WeakTensor& known) {
    return known._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  };
  if (std::none_of(captured_.begin(), captured_.end(), is_it))
    captured_.emplace_back(tensor.getIntrusivePtr());
}

std::vector<at::Tensor> OutsideLog::captured() const {
  std::vector<at::Tensor> alive;
  const auto append = [&](const OutsideStorage::WeakTensor& known) {
    at::Tensor tensor(known.lock());
    if (tensor.defined() && tensor.requires_grad()) alive.push_back(std::move(tensor));
  };
  for (const OutsideStorage& storage : storages_) append(storage.first_tensor());
  std::for_each(captured_.begin(), captured_.end(), append);
  return alive;
}

bool OutsideLog::writes_argument(size_t i) const {
  return i < arguments_.size() && arguments_[i].is_outside() &&
         storages_[arguments_[i].number()].is_written();
}

}  // namespace remat
