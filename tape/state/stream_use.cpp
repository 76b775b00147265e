// SPDX-License-Identifier: BSD-3-Clause

// Reporting stream use to a device's allocator through LibTorch's device guards.
#include <remat/tape/stream_use.h>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include <remat/tape/tensor_layout.h>

namespace remat {
namespace {

bool has_streams(c10::Device device) {
  return device.is_cuda() || device.is_xpu();
}

/// The current streams of `device`: of this thread, and among `first`.
std::pair<c10::Stream, c10::Stream> now_and_first(c10::Device device, const CurrentStreams& first) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream now = guard.getStream(device);
  const ReplayStreams there(first);
  return {now, guard.getStream(device)};
}

void wait_for(const c10::Stream& stream, const c10::Stream& waiting) {
  if (stream == waiting) return;
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(waiting);
}

}  // namespace

void note_stream_use(const at::Tensor& tensor) {
  if (!has_streams(tensor.device()) || !has_layout(tensor) || !tensor.has_storage()) return;
  const c10::DataPtr& memory =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (!memory.get()) return;  // A placeholder.
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(memory, guard.getStream(tensor.device()));
}

void note_stream_use(const OpCall& call) {
  for_each_argument_tensor(call, [](size_t, const at::Tensor& tensor) { note_stream_use(tensor); });
}

void let_replays_wait(c10::Device device, const CurrentStreams& first) {
  if (!has_streams(device) || !first.changed()) return;
  const auto [now, begin] = now_and_first(device, first);
  wait_for(now, begin);
}

void wait_for_start_of_replay(c10::Device device, const CurrentStreams& first) {
  if (!has_streams(device) || !first.changed()) return;
  const auto [now, begin] = now_and_first(device, first);
  wait_for(begin, now);
}

}  // namespace remat
