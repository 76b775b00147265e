// SPDX-License-Identifier: BSD-3-Clause

// Reading layouts from tensors, and making tensors with a given layout.
#include <remat/tape/tensor_layout.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/irange.h>

#include <utility>

#include <remat/placeholder/placeholder_impl.h>

namespace remat {

TensorLayout::TensorLayout(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      offset(tensor.storage_offset()),
      dtype(tensor.scalar_type()),
      conjugated(tensor.is_conj()),
      negated(tensor.is_neg()) {}

TensorLayout TensorLayout::flat(size_t size_bytes, c10::ScalarType dtype) {
  TensorLayout layout;
  layout.sizes = {static_cast<int64_t>(size_bytes / c10::elementSize(dtype))};
  layout.strides = {1};
  layout.dtype = dtype;
  return layout;
}

size_t TensorLayout::bytes_spanned() const {
  int64_t last = offset;
  for (const auto d : c10::irange(sizes.size())) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(dtype);
}

bool TensorLayout::covers(size_t size_bytes) const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(dtype);
  return offset == 0 && bytes == size_bytes && bytes_spanned() == bytes;
}

bool has_layout(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == c10::Layout::Strided && !tensor.is_nested() &&
         !tensor.is_quantized() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_freed(const at::Tensor& tensor) {
  if (!has_layout(tensor) || tensor.numel() == 0) return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  int64_t last = impl.storage_offset();
  for (const auto d : c10::irange(impl.dim())) last += (impl.size(d) - 1) * impl.stride(d);
  return impl.unsafe_storage().nbytes() < static_cast<size_t>(last + 1) * impl.itemsize();
}

bool covers_storage(const at::Tensor& tensor) {
  return TensorLayout(tensor).covers(tensor.storage().nbytes());
}

TensorLayout whole_layout(const at::Tensor& tensor) {
  TensorLayout layout(tensor);
  const size_t size_bytes = tensor.storage().nbytes();
  return layout.covers(size_bytes) ? layout : TensorLayout::flat(size_bytes, c10::kByte);
}

at::Tensor lay_out(const c10::Storage& storage, const TensorLayout& layout) {
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(layout.dtype);
  c10::intrusive_ptr<c10::TensorImpl> impl;
  if (PlaceholderStorage::is(storage)) {
    impl = c10::make_intrusive<PlaceholderImpl>(storage, dtype);
  } else {
    const auto key = c10::computeDispatchKey(layout.dtype, c10::kStrided, storage.device());
    impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                dtype);
  }
  impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (layout.conjugated) impl->_set_conj(true);
  if (layout.negated) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

}  // namespace remat
