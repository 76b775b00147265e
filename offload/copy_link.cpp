// SPDX-License-Identifier: BSD-3-Clause

// Links that copy by streams of devices and by threads of the CPU.
#include <remat/offload/copy_link.h>

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "pages.h"
#include "worker.h"

#include <remat/engine/blocking_wait.h>
#include <remat/engine/tensor_layout.h>
#include <remat/offload/sim_link.h>

namespace remat {
namespace {

/// CPU memory that begins and ends at a page, as devices and O_DIRECT files require. Bypasses
/// LibTorch's allocators. Throws std::bad_alloc.
at::Storage allocate_pages(int64_t bytes) {
  const auto size = static_cast<size_t>(detail::whole_pages(bytes));
  void* const memory = std::aligned_alloc(detail::kPageBytes, size);
  if (!memory && size > 0) throw std::bad_alloc();
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                c10::DataPtr(memory, memory, &std::free, c10::kCPU),
                                                /*allocator=*/nullptr,
                                                /*resizable=*/false)};
}

/// Number of bytes that a copy moves: those of the device's storage. The host's may be larger.
size_t copied_bytes(const at::Storage& to, const at::Storage& from) {
  return std::min(to.nbytes(), from.nbytes());
}

/// A tensor of the first `bytes` of the storage. Made without an op, so that no interception or
/// mode sees an op.
at::Tensor byte_tensor(const at::Storage& storage, size_t bytes) {
  return lay_out(storage, TensorLayout::flat(bytes, at::kByte));
}

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
  // False for memory from another allocator, because the device's allocator tracks only its own.
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

// Makes the stream wait for the event. Blocks the calling thread if the event is not on a stream (a
// read from disk), because then only the host can wait for it.
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
  const size_t bytes = copied_bytes(to, from);
  byte_tensor(to, bytes).copy_(byte_tensor(from, bytes), /*non_blocking=*/true);
  return std::make_shared<StreamEvent>(stream);
}

/// For the CPU, copies on two threads; if `simulated` is set, each copy takes as long as on a link
/// of that speed. The calling thread stands for the stream, whose work has therefore always
/// finished. For other devices, copies through pinned memory, on two streams of its own per device.
/// Works for every device that has LibTorch's guards.
class DeviceLink final : public CopyLink {
 public:
  /// `simulated`: the speed of a simulated link, which refuses devices other than the CPU when a
  /// store's put() first names one; nullopt for a real link.
  explicit DeviceLink(const std::optional<SimLinkOptions>& simulated) : simulated_(simulated) {}

  at::Storage allocate_host(int64_t bytes, c10::Device device) override {
    check(device);
    if (device.is_cpu()) return allocate_pages(bytes);
    c10::Allocator* const pinned =
        at::globalContext().getAcceleratorHooksInterface(device.type()).getPinnedMemoryAllocator();
    return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                  pinned, /*resizable=*/false)};
  }
  int64_t stream(c10::Device device) override {
    return device.is_cpu() ? 0 : current_stream(device).id();
  }
  void share(const at::Storage& storage) override {
    const c10::Device device = storage.device();
    if (device.is_cpu()) return;
    c10::impl::VirtualGuardImpl(device.type())
        .recordDataPtrOnStream(storage.data_ptr(), current_stream(device));
  }
  CopyEventPtr computed_so_far(c10::Device device) override {
    check(device);
    if (device.is_cpu()) return nullptr;
    return std::make_shared<StreamEvent>(current_stream(device));
  }
  void hold_compute(const CopyEventPtr& event, c10::Device device) override {
    if (!device.is_cpu()) return hold(current_stream(device), event);
    if (event) event->wait();
  }
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override {
    if (device.device().is_cpu()) return copy_by(out_, host, device, after);
    return copy_on(streams_of(device.device()).first, host, device, after);
  }
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override {
    if (device.device().is_cpu()) return copy_by(in_, device, host, after);
    return copy_on(streams_of(device.device()).second, device, host, after);
  }

 private:
  void check(c10::Device device) const {
    TORCH_CHECK_NOT_IMPLEMENTED(
        device.is_cpu() || !simulated_, "[sim_link] device: expected memory of the CPU, got ",
        device,
        ". A link of a set speed copies by the CPU. Leave the link out, or let the store's device "
        "be cpu.");
  }

  CopyEventPtr copy_by(detail::Worker& worker, const at::Storage& to, const at::Storage& from,
                       const CopyEventPtr& after) const {
    void* const target = to.mutable_data();
    const void* const source = from.data();
    const size_t bytes = copied_bytes(to, from);
    const SimLinkOptions options = simulated_.value_or(SimLinkOptions{});
    const double bytes_per_us = options.gbps * 1e3;
    const std::chrono::duration<double, std::micro> time(
        options.latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0));
    return worker.run(
        [target, source, bytes, time] {
          const auto end = std::chrono::steady_clock::now() + time;
          std::memcpy(target, source, bytes);
          std::this_thread::sleep_until(end);
        },
        after);
  }

  using Streams = std::pair<c10::Stream, c10::Stream>;  // out of the device and into it

  const Streams& streams_of(c10::Device device) {
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

  const std::optional<SimLinkOptions> simulated_;
  detail::Worker out_;
  detail::Worker in_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Streams> streams_;
};

}  // namespace

at::Storage CopyLink::allocate(int64_t bytes, c10::Device device) {
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                c10::GetAllocator(device.type()),
                                                /*resizable=*/true)};
}

std::shared_ptr<CopyLink> copy_link() {
  return std::make_shared<DeviceLink>(std::nullopt);
}

std::shared_ptr<CopyLink> sim_link(const SimLinkOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.gbps) && options.gbps >= 0,
                    "[sim_link] gbps: expected 1e9 bytes a second, 0 for as fast as memory, got ",
                    options.gbps, ".");
  TORCH_CHECK_VALUE(std::isfinite(options.latency_us) && options.latency_us >= 0,
                    "[sim_link] latency_us: expected microseconds, got ", options.latency_us, ".");
  return std::make_shared<DeviceLink>(options);
}

}  // namespace remat
