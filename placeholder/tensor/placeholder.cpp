// SPDX-License-Identifier: BSD-3-Clause

// The storage and TensorImpl of placeholders, making and recognising them, and the errors when one
// is read.
#include <remat/placeholder/placeholder.h>

#include <ATen/EmptyTensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <typeinfo>
#include <utility>

#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

std::string maker(const PlaceholderInfo& info) {
  return info.op.empty() ? std::string() : c10::str(" (", info.op, ")");
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == c10::Layout::Strided &&
         !tensor.is_nested() && !tensor.is_quantized() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

const PlaceholderStorage* as_placeholder(const c10::StorageImpl* storage) {
  // The class is final, so comparing type_info is equivalent to a dynamic_cast, and cheaper.
  if (!storage || typeid(*storage) != typeid(PlaceholderStorage)) return nullptr;
  return static_cast<const PlaceholderStorage*>(storage);
}

/// Returns the dispatch keys of a placeholder that reports `device`. The device's autocast key is
/// one of them, because otherwise autocast would not handle ops on the placeholder.
c10::DispatchKeySet keys_on(c10::Device device, caffe2::TypeMeta dtype) {
  const auto key = c10::computeDispatchKey(c10::typeMetaToScalarType(dtype), c10::kStrided, device);
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) |
         c10::getAutocastRelatedKeySetFromBackend(c10::toBackendComponent(key));
}

/// `reader` is an op's name, or a description of another read.
std::string placeholder_access_message(std::string_view reader, const PlaceholderInfo& info) {
  if (info.kind == PlaceholderKind::kDry) {
    return c10::str("[placeholder] dry tensor", maker(info),
                    ": expected an op that needs shapes only, got ", reader,
                    ", which needs its data. A tensor on remat_meta has none that could reach the "
                    "host: run this part on a real device.");
  }
  return c10::str("[placeholder] result of call '", info.call, "'", maker(info), " of ",
                  info.region, ": expected a use of its shape only, got ", reader,
                  ", which needs its data. A placeholder stands for a value that was not kept: its "
                  "call is skipped during recompute. Keep or compute the value, by "
                  "recompute_needs_tensor() right before the reader for instance, or do not read "
                  "it.");
}

}  // namespace

at::Tensor make_placeholder(const at::Tensor& like, PlaceholderInfo info) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_plain(like), "[placeholder] result of call '", info.call, "'",
                              ": expected a strided tensor, got ", describe_tensor(like),
                              ". Keep its value instead.");
  const c10::Device device = info.kind == PlaceholderKind::kDry ? dry_device() : like.device();
  auto storage =
      c10::make_intrusive<PlaceholderStorage>(like.storage().nbytes(), device, std::move(info));
  return make_placeholder_on(c10::Storage(std::move(storage)), like);
}

c10::Storage make_dry_storage(size_t size_bytes, std::string_view op) {
  return c10::Storage(c10::make_intrusive<PlaceholderStorage>(
      size_bytes, dry_device(),
      PlaceholderInfo{
          .kind = PlaceholderKind::kDry, .region = {}, .call = {}, .op = std::string(op)}));
}

at::Tensor make_dry(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                    std::string_view op) {
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, type.itemsize());
  auto impl = c10::make_intrusive<PlaceholderImpl>(make_dry_storage(bytes, op), type);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

bool is_placeholder(const at::Tensor& tensor) {
  return PlaceholderStorage::of(tensor) != nullptr;
}

const PlaceholderInfo& placeholder_info(const at::Tensor& tensor) {
  const PlaceholderStorage* const storage = PlaceholderStorage::of(tensor);
  TORCH_CHECK_VALUE(storage, "[placeholder] tensor: expected a placeholder, got ",
                    describe_tensor(tensor), ". Ask is_placeholder() first.");
  return storage->info();
}

std::string describe_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  const std::string dtype(c10::getDtypeNames(tensor.scalar_type()).first);
  if (tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return c10::str(dtype, " [sizes unknown] on ", tensor.device());
  return c10::str(dtype, " ", tensor.sizes(), " on ", tensor.device());
}

void throw_placeholder_access(std::string_view op_name, const PlaceholderInfo& info) {
  TORCH_CHECK(false, placeholder_access_message(op_name, info));
}

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
