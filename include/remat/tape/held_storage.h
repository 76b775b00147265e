// SPDX-License-Identifier: BSD-3-Clause

// A storage that somebody is meant to hold, for those who count bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// The storage of `tensor`, which has one, without keeping its bytes alive.
inline c10::weak_intrusive_ptr<c10::StorageImpl> weak_storage(const at::Tensor& tensor) {
  auto borrowed = c10::intrusive_ptr<c10::StorageImpl>::reclaim(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(borrowed);
  borrowed.release();
  return weak;
}

/// Refers to the storage of a tensor without keeping it alive; while this object lives the
/// storage's address is not used again. A tensor's storage may be gone although its value is held:
/// by hooks, or in an outer region.
class REMAT_API HeldStorage {
 public:
  HeldStorage() = default;
  /// Of a tensor that is defined; a tensor without storage has none here either.
  explicit HeldStorage(const at::Tensor& tensor) {
    if (tensor.has_storage()) storage_.emplace(weak_storage(tensor));
    if (C10_UNLIKELY(!tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python)))
      parts_ = parts_of(tensor);
  }

  /// The tensors that have the bytes of one without a storage: those in a tensor of a Python class
  /// of its own, the indices and values of a sparse one. Null for any other tensor.
  const std::vector<HeldStorage>* parts() const { return parts_.get(); }

  /// Tells the storage from others; null if it is gone or was never there.
  const void* address() const {
    return storage_ && !storage_->expired() ? storage_->_unsafe_get_target() : nullptr;
  }

  /// The storage, which then lives as long as what is returned; null if it is gone.
  c10::Storage lock() const { return storage_ ? c10::Storage(storage_->lock()) : c10::Storage(); }

  /// The size of the storage; 0 if it is gone.
  size_t size_bytes() const {
    if (!storage_) return 0;
    const auto storage = storage_->lock();
    return storage ? storage->nbytes() : 0;
  }

 private:
  using Parts = std::shared_ptr<const std::vector<HeldStorage>>;
  static Parts parts_of(const at::Tensor& tensor);

  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  Parts parts_;
};

/// Finds the tensors in a tensor of a Python class of its own, outside of all scopes. Set by the
/// binding of the language; may be null.
using InnerTensors = std::vector<at::Tensor> (*)(const at::Tensor& tensor);
REMAT_API void set_inner_tensors(InnerTensors find);

/// The tensors in a tensor of a Python class of its own (__torch_dispatch__), and the tensors in
/// those; none for any other tensor. Runs code of the class, outside of all scopes.
REMAT_API std::vector<at::Tensor> inner_tensors(const at::Tensor& tensor);

}  // namespace remat
