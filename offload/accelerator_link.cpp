// SPDX-License-Identifier: BSD-3-Clause

#include "accelerator_link.h"

#include <ATen/Context.h>
#include <ATen/ops/narrow.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "storage_memory.h"

#include <remat/engine/blocking_wait.h>

namespace remat::detail {
namespace {

class StreamEvent final : public CopyEvent {
 public:
  explicit StreamEvent(const c10::Stream& stream) : stream_(stream), event_(stream.device_type()) {
    event_.record(stream);
  }

  bool is_done() override { return event_.query(); }
  void wait() override {
    if (event_.query()) return;
    blocking_wait([this] { event_.synchronize(); });
  }
  // The allocator ignores memory that is not its own.
  bool may_go(const c10::Storage& storage) override {
    const c10::DeviceType device = storage.device_type();
    const c10::Allocator* const allocator = c10::GetAllocator(device);
    const c10::DeleterFnPtr deleter = allocator->raw_deleter();
    if (!deleter || storage.data_ptr().get_deleter() != deleter) return false;
    c10::impl::VirtualGuardImpl(device).recordDataPtrOnStream(storage.data_ptr(), stream_);
    return true;
  }
  void block(const c10::Stream& stream) const { event_.block(stream); }

 private:
  c10::Stream stream_;
  c10::Event event_;
};

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Work of another kind, such as a read from disk, must be waited for on the host.
void hold(const c10::Stream& stream, const CopyEventPtr& event) {
  if (!event) return;
  if (const auto* const on_device = dynamic_cast<const StreamEvent*>(event.get())) {
    on_device->block(stream);
  } else {
    event->wait();
  }
}

CopyEventPtr copy_on(const c10::Stream& stream, const at::Storage& to, const at::Storage& from,
                     const CopyEventPtr& after) {
  hold(stream, after);
  const c10::StreamGuard guard(stream);
  const auto bytes = static_cast<int64_t>(copied_bytes(to, from));
  byte_tensor(to)
      .narrow(0, 0, bytes)
      .copy_(byte_tensor(from).narrow(0, 0, bytes),
             /*non_blocking=*/true);
  return std::make_shared<StreamEvent>(stream);
}

}  // namespace

at::Storage AcceleratorLink::allocate_host(int64_t bytes, c10::Device device) {
  c10::Allocator* const allocator =
      at::globalContext().getAcceleratorHooksInterface(device.type()).getPinnedMemoryAllocator();
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                allocator, /*resizable=*/false)};
}

int64_t AcceleratorLink::stream(c10::Device device) {
  return current_stream(device).id();
}

void AcceleratorLink::share(const at::Storage& storage) {
  const c10::Device device = storage.device();
  c10::impl::VirtualGuardImpl(device.type())
      .recordDataPtrOnStream(storage.data_ptr(), current_stream(device));
}

CopyEventPtr AcceleratorLink::computed_so_far(c10::Device device) {
  return std::make_shared<StreamEvent>(current_stream(device));
}

void AcceleratorLink::hold_compute(const CopyEventPtr& event, c10::Device device) {
  hold(current_stream(device), event);
}

CopyEventPtr AcceleratorLink::copy_out(const at::Storage& host, const at::Storage& device,
                                       const CopyEventPtr& after) {
  return copy_on(streams_of(device.device()).first, host, device, after);
}

CopyEventPtr AcceleratorLink::copy_in(const at::Storage& device, const at::Storage& host,
                                      const CopyEventPtr& after) {
  return copy_on(streams_of(device.device()).second, device, host, after);
}

const AcceleratorLink::Streams& AcceleratorLink::streams_of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  const auto key = std::make_pair(device.type(), device.index());
  auto entry = streams_.find(key);
  if (entry == streams_.end()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    entry = streams_.emplace(key, Streams{guard.getNewStream(device), guard.getNewStream(device)})
                .first;
  }
  return entry->second;
}

}  // namespace remat::detail
