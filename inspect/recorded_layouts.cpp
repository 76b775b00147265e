// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_layouts.h"

#include <remat/tape/tensor_meta.h>

namespace remat {
namespace {

bool has_plain_sizes(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->layout() == c10::kStrided && !impl->has_symbolic_sizes_strides() &&
         !impl->is_python_dispatch() && !tensor.is_nested();
}

/// Reads the address without the checks by which fake tensors and wrappers raise: nobody reads the
/// data.
uint64_t address_of(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return 0;
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
}

bool requires_grad(const at::TensorBase& tensor) {
  return !tensor.is_inference() && tensor.requires_grad();
}

}  // namespace

RecordedTensor RecordedLayouts::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const bool plain = has_plain_sizes(tensor);
  const LayoutId id = id_of(tensor, plain);
  return {id, address_of(tensor), plain ? tensor.unsafeGetTensorImpl()->storage_offset() : 0};
}

LayoutId RecordedLayouts::id_of(const at::TensorBase& tensor, bool plain) {
  if (plain && static_cast<size_t>(tensor.dim()) > kMostDims) return ask(tensor);
  const Key key = key_of(tensor, plain);
  Known& known = known_[(key.hash >> 32U) % kSize];
  if (known.id != 0 && known.key == key) return known.id;
  // Calls into Python may run ops meanwhile, which may change this cache.
  const LayoutId id = ask(tensor);
  known = {key, id};
  return id;
}

RecordedLayouts::Key RecordedLayouts::key_of(const at::TensorBase& tensor, bool plain) {
  const c10::Device device = tensor.device();
  Key key;
  key.add(static_cast<int64_t>(tensor.scalar_type()));
  key.add((static_cast<int64_t>(device.type()) << 9) + (int64_t{device.index()} << 1) +
          (requires_grad(tensor) ? 1 : 0));
  if (!plain) return key;
  key.add(tensor.dim());
  for (const int64_t size : tensor.sizes()) key.add(size);
  for (const int64_t stride : tensor.strides()) key.add(stride);
  return key;
}

LayoutId RecordedLayouts::ask(const at::TensorBase& tensor) {
  RecordedLayout layout;
  layout.dtype = writer_.string(dtype_name(tensor.scalar_type()));
  layout.device = writer_.string(tensor.device().str());
  layout.requires_grad = requires_grad(tensor);
  if (has_plain_sizes(tensor)) {
    layout.sizes = tensor.sizes().vec();
    if (!tensor.is_contiguous()) layout.strides = tensor.strides().vec();
  }
  return writer_.layout(layout);
}

}  // namespace remat
