// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_layouts.h"

#include <c10/util/irange.h>

#include <remat/tape/tensor_meta.h>

namespace remat {
namespace {

bool has_plain_sizes(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->layout() == c10::kStrided && !impl->has_symbolic_sizes_strides() &&
         !impl->is_python_dispatch() && !tensor.is_nested();
}

/// Without the checks that fake tensors and wrappers raise by: nobody reads the data.
uint64_t address_of(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return 0;
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
}

int64_t offset_of(const at::TensorBase& tensor) {
  return has_plain_sizes(tensor) ? tensor.unsafeGetTensorImpl()->storage_offset() : 0;
}

bool requires_grad(const at::TensorBase& tensor) {
  return !tensor.is_inference() && tensor.requires_grad();
}

}  // namespace

RecordedTensor RecordedLayouts::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  set_key(tensor);
  uint64_t hash = 0;
  for (const int64_t part : key_) hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
  Known& known = known_[(hash >> 32U) % kSize];
  if (known.key != key_) {
    Key key = key_;  // Python may run ops while it is asked
    const LayoutId id = ask(tensor);
    known = {std::move(key), id};
    return {id, address_of(tensor), offset_of(tensor)};
  }
  return {known.id, address_of(tensor), offset_of(tensor)};
}

void RecordedLayouts::set_key(const at::TensorBase& tensor) {
  const c10::Device device = tensor.device();
  key_.clear();
  key_.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key_.push_back((static_cast<int64_t>(device.type()) << 9) + (int64_t{device.index()} << 1) +
                 (requires_grad(tensor) ? 1 : 0));
  if (!has_plain_sizes(tensor)) return;
  key_.push_back(tensor.dim());
  key_.insert(key_.end(), tensor.sizes().begin(), tensor.sizes().end());
  key_.insert(key_.end(), tensor.strides().begin(), tensor.strides().end());
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
