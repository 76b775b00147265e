// SPDX-License-Identifier: BSD-3-Clause

// The storage and TensorImpl of placeholders.
#include <remat/placeholder/placeholder_impl.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <typeinfo>
#include <utility>

#include "placeholder_message.h"

namespace remat {
namespace {

const PlaceholderStorage* as_placeholder(const c10::StorageImpl* storage) {
  // The class is final, so comparing type_info is equivalent to a dynamic_cast, and cheaper.
  if (!storage || typeid(*storage) != typeid(PlaceholderStorage)) return nullptr;
  return static_cast<const PlaceholderStorage*>(storage);
}

/// Autocast handles an op only if a tensor has the autocast key of the device that autocast is
/// enabled on.
c10::DispatchKeySet keys_on(c10::Device device, caffe2::TypeMeta dtype) {
  const auto key = c10::computeDispatchKey(c10::typeMetaToScalarType(dtype), c10::kStrided, device);
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) |
         c10::getAutocastRelatedKeySetFromBackend(c10::toBackendComponent(key));
}

}  // namespace

PlaceholderStorage::PlaceholderStorage(size_t size_bytes, c10::Device device, PlaceholderInfo info)
    : StorageImpl(use_byte_size_t(), size_bytes, at::DataPtr(nullptr, device),
                  /*allocator=*/nullptr, /*resizable=*/false),
      info_(std::move(info)) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(
      placeholder_access_message("a read of its memory", info_));
}

const PlaceholderStorage* PlaceholderStorage::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return as_placeholder(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

bool PlaceholderStorage::is(const c10::Storage& storage) {
  return as_placeholder(storage.unsafeGetStorageImpl()) != nullptr;
}

PlaceholderImpl::PlaceholderImpl(c10::Storage storage, caffe2::TypeMeta dtype)
    : TensorImpl(c10::Storage(storage), keys_on(storage.device(), dtype), dtype),
      device_(storage.device()) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(as_placeholder(unsafe_storage().unsafeGetStorageImpl()));
  set_custom_device(true);
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> PlaceholderImpl::shallow_copy(
    Version&& version_counter, bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<PlaceholderImpl>(storage(), dtype());
  copy_tensor_metadata(this, copy.get(), std::forward<Version>(version_counter),
                       allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> PlaceholderImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  return shallow_copy(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> PlaceholderImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  return shallow_copy(std::move(version_counter), allow_tensor_metadata_change);
}

void PlaceholderImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  copy_tensor_metadata(impl.get(), this, version_counter(), allow_tensor_metadata_change());
  device_ = impl->device();
}

const char* PlaceholderImpl::tensorimpl_type_name() const {
  return "remat::PlaceholderImpl";
}

at::Tensor make_placeholder_on(c10::Storage storage, const at::Tensor& like) {
  auto impl = c10::make_intrusive<PlaceholderImpl>(std::move(storage), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

}  // namespace remat
