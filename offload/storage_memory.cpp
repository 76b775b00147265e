// SPDX-License-Identifier: BSD-3-Clause

#include "storage_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include <remat/engine/tensor_layout.h>

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
  return lay_out(storage, TensorLayout::flat(storage.nbytes(), at::kByte));
}

}  // namespace remat::detail
