// SPDX-License-Identifier: BSD-3-Clause

// Reading and setting the accelerator's current device and streams through LibTorch's device
// guards.
#include <remat/engine/current_streams.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <remat/engine/stream_use.h>
#include <remat/engine/tensor_layout.h>

namespace remat {
namespace {

using Guard = c10::impl::DeviceGuardImplInterface;

constexpr c10::DeviceType kWithStreams[] = {c10::DeviceType::CUDA, c10::DeviceType::XPU,
                                            c10::DeviceType::PrivateUse1};

/// True if the process has used a device of this type. Asking the device's guard would initialise
/// the device, which could then not be used after a fork.
bool is_used(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return false;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
  return allocator && allocator->initialized();
}

/// The guard of the accelerator that the process uses, null if it uses none.
const Guard* used_accelerator() {
  const auto* const type = std::find_if(std::begin(kWithStreams), std::end(kWithStreams), &is_used);
  return type == std::end(kWithStreams) ? nullptr : c10::impl::getDeviceGuardImpl(*type);
}

bool has_streams(c10::Device device) {
  return device.is_cuda() || device.is_xpu();
}

/// Returns two streams of `device`: this thread's current one, and the one in `first`.
std::pair<c10::Stream, c10::Stream> now_and_first(c10::Device device, const CurrentStreams& first) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream now = guard.getStream(device);
  const KeptStreams there(first);
  return {now, guard.getStream(device)};
}

void wait_for(const c10::Stream& stream, const c10::Stream& waiting) {
  if (stream == waiting) return;
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(waiting);
}

}  // namespace

CurrentStreams CurrentStreams::read() {
  CurrentStreams streams;
  const Guard* const guard = used_accelerator();
  if (!guard) return streams;
  streams.is_used_ = true;
  streams.device_ = guard->getDevice().index();
  for (const auto i : c10::irange(guard->deviceCount())) {
    const c10::StreamId id = guard->getStream({guard->type(), i}).id();
    if (id == 0) continue;
    streams.other_.resize(static_cast<size_t>(i) + 1);
    streams.other_.back() = id;
  }
  return streams;
}

void CurrentStreams::set() const {
  const Guard* const guard = used_accelerator();
  if (!guard) return;
  for (const auto i : c10::irange(guard->deviceCount())) {
    const auto number = static_cast<size_t>(i);
    const c10::Device device{guard->type(), i};
    guard->exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, on(number)));
  }
  guard->setDevice({guard->type(), device_});
}

KeptStreams::~KeptStreams() {
  if (present_.changed()) present_.set();
}

KeptStreams::KeptStreams(const CurrentStreams& streams) {
  if (!present_.are_same(streams)) streams.set();
}

void UsedStreams::note() {
  const Guard* const guard = used_accelerator();
  if (!guard) return;
  for (const auto i : c10::irange(guard->deviceCount())) {
    const c10::Stream stream = guard->getStream({guard->type(), i});
    const bool is_known = stream.id() == first_.on(static_cast<size_t>(i)) ||
                          std::find(used_.begin(), used_.end(), stream) != used_.end();
    if (is_known) continue;
    used_.push_back(stream);
    // See Note [Streams of kept values].
    c10::Event event(stream.device_type());
    event.record(
        c10::Stream(c10::Stream::UNSAFE, stream.device(), first_.on(static_cast<size_t>(i))));
    event.block(stream);
  }
}

UsedStreams::~UsedStreams() {
  try {
    for (const c10::Stream& stream : used_) {
      c10::Event event(stream.device_type());
      event.record(stream);
      const c10::StreamId first = first_.on(static_cast<size_t>(stream.device_index()));
      event.block(c10::Stream(c10::Stream::UNSAFE, stream.device(), first));
    }
  } catch (const c10::Error&) {
    // The device has failed; the next op on it raises.
  }
}

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
