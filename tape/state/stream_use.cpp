// SPDX-License-Identifier: BSD-3-Clause

// Reporting stream use to a device's allocator through LibTorch's device guards.
#include <remat/tape/stream_use.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <remat/tape/tensor_layout.h>

namespace remat {

void note_stream_use(const at::Tensor& tensor) {
  const bool is_elsewhere = tensor.is_cuda() || tensor.is_xpu();
  if (!is_elsewhere || !has_layout(tensor) || !tensor.has_storage()) return;
  const c10::DataPtr& memory =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (!memory.get()) return;  // A placeholder.
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(memory, guard.getStream(tensor.device()));
}

void note_stream_use(const OpCall& call) {
  for_each_argument_tensor(call, [](size_t, const at::Tensor& tensor) { note_stream_use(tensor); });
}

}  // namespace remat
