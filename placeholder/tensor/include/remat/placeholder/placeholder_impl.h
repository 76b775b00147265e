// SPDX-License-Identifier: BSD-3-Clause

// The tensor and storage classes of placeholders, for code that extends the dispatcher.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>

#include <remat/placeholder/placeholder.h>
#include <remat/placeholder/visibility.h>

namespace remat {

/// A storage with a size and a null pointer; reading the pointer raises an error.
///
/// Note [Known by the storage]: LibTorch makes ordinary TensorImpls on a placeholder's storage
/// (`view(dtype)`, `set_data`), but never copies a storage. So a tensor is recognised as a
/// placeholder by its storage.
class REMAT_API PlaceholderStorage final : public c10::StorageImpl {
 public:
  PlaceholderStorage(size_t size_bytes, c10::Device device, PlaceholderInfo info);

  const PlaceholderInfo& info() const { return info_; }

  /// The storage of a placeholder, owned by `tensor`; null if `tensor` is no placeholder.
  static const PlaceholderStorage* of(const at::Tensor& tensor);

  static bool is(const c10::Storage& storage);

 private:
  PlaceholderInfo info_;
};

/// A tensor that reports the device of its storage, but dispatches to PrivateUse1.
class REMAT_API PlaceholderImpl final : public c10::TensorImpl {
 public:
  /// `storage` must be a PlaceholderStorage. Sizes are {0} until they are set.
  PlaceholderImpl(c10::Storage storage, caffe2::TypeMeta dtype);

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 protected:
  c10::Device device_custom() const override { return device_; }
  const char* tensorimpl_type_name() const override;

 private:
  template <class Version>
  c10::intrusive_ptr<TensorImpl> shallow_copy(Version&& version_counter,
                                              bool allow_tensor_metadata_change) const;

  c10::Device device_;
};

/// Returns a tensor on `storage`, a PlaceholderStorage, with the geometry, dtype, and conjugate and
/// negative bits of `like`.
REMAT_API at::Tensor make_placeholder_on(c10::Storage storage, const at::Tensor& like);

/// The device of dry tensors, remat_meta:0.
inline c10::Device dry_device() {
  return {c10::DeviceType::PrivateUse1, 0};
}

/// Returns a new storage for a dry tensor that `op` made.
REMAT_API c10::Storage make_dry_storage(size_t size_bytes, std::string_view op);

}  // namespace remat
