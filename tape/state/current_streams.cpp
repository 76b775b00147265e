// SPDX-License-Identifier: BSD-3-Clause

// Reading and setting the accelerator's current device and streams, by LibTorch's device guards.
#include <remat/tape/current_streams.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <iterator>

namespace remat {
namespace {

using Guard = c10::impl::DeviceGuardImplInterface;

constexpr c10::DeviceType kWithStreams[] = {c10::DeviceType::CUDA, c10::DeviceType::XPU,
                                            c10::DeviceType::PrivateUse1};

/// True if the process has used a device of this type. Asking its guard would initialise it, and a
/// process that forks later could then not use it any more.
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
    const c10::StreamId id = number < other_.size() ? other_[number] : 0;
    guard->exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, id));
  }
  guard->setDevice({guard->type(), device_});
}

ReplayStreams::ReplayStreams(const CurrentStreams& streams)
    : present_(CurrentStreams::read()), differ_(!present_.are_same(streams)) {
  if (differ_) streams.set();
}

ReplayStreams::~ReplayStreams() {
  if (differ_) present_.set();
}

}  // namespace remat
