// SPDX-License-Identifier: BSD-3-Clause

#include "storage_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "pages.h"

namespace remat::detail {

at::Storage allocate_storage(int64_t bytes, c10::Device device) {
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                c10::GetAllocator(device.type()),
                                                /*resizable=*/true)};
}

at::Storage allocate_pages(int64_t bytes) {
  const auto size = static_cast<size_t>(whole_pages(bytes));
  void* const memory = std::aligned_alloc(kPageBytes, size);
  if (!memory && size > 0) throw std::bad_alloc();
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                c10::DataPtr(memory, memory, &std::free, c10::kCPU),
                                                /*allocator=*/nullptr,
                                                /*resizable=*/false)};
}

size_t copied_bytes(const at::Storage& to, const at::Storage& from) {
  return std::min(to.nbytes(), from.nbytes());
}

at::Tensor byte_tensor(const at::Storage& storage) {
  const c10::DispatchKeySet keys(
      c10::computeDispatchKey(at::kByte, c10::kStrided, storage.device()));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys,
                                                               caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return tensor;
}

}  // namespace remat::detail
