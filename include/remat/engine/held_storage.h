// SPDX-License-Identifier: BSD-3-Clause

// A weak reference to a storage, for counting bytes that other code should hold.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// A weak pointer to the storage of `tensor`, which must have one. Does not keep the bytes alive.
inline c10::weak_intrusive_ptr<c10::StorageImpl> weak_storage(const at::Tensor& tensor) {
  auto borrowed = c10::intrusive_ptr<c10::StorageImpl>::reclaim(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(borrowed);
  borrowed.release();
  return weak;
}

/// Refers to the storage of a tensor without keeping it alive. While this object lives, the
/// storage's address is not reused. The storage may be freed although saved-tensor hooks or an
/// outer region still hold the tensor's value.
class REMAT_API HeldStorage {
 public:
  HeldStorage() = default;
  /// `tensor` must be defined. A tensor without storage leaves this object without one.
  explicit HeldStorage(const at::Tensor& tensor) {
    if (tensor.has_storage()) storage_.emplace(weak_storage(tensor));
    if (C10_UNLIKELY(!tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python)))
      parts_ = parts_of(tensor);
  }

  /// The inner tensors whose bytes back a tensor without a storage of its own: those of a tensor
  /// subclass (__torch_dispatch__), or the indices and values of a sparse tensor. Null for any
  /// other tensor.
  const std::vector<HeldStorage>* parts() const { return parts_.get(); }

  /// Address that identifies the storage; null if the storage is freed or never existed.
  const void* address() const {
    return storage_ && !storage_->expired() ? storage_->_unsafe_get_target() : nullptr;
  }

  /// The storage, kept alive by the returned reference; null if the storage is freed.
  c10::Storage lock() const { return storage_ ? c10::Storage(storage_->lock()) : c10::Storage(); }

  /// Size of the storage; 0 if the storage is freed.
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

/// Finds the inner tensors of a tensor subclass. Called with no scope active. The language binding
/// sets it; null (the default) finds none.
using InnerTensors = std::vector<at::Tensor> (*)(const at::Tensor& tensor);
REMAT_API void set_inner_tensors(InnerTensors find);

/// The inner tensors of a tensor subclass (__torch_dispatch__), recursively; empty for any other
/// tensor. Runs code of the class, with no scope active.
REMAT_API std::vector<at::Tensor> inner_tensors(const at::Tensor& tensor);

}  // namespace remat
