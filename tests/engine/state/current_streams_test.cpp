// SPDX-License-Identifier: BSD-3-Clause

// The accelerator's current device and streams: read, set for a replay, put back, and waited for.
#include <remat/engine/current_streams.h>

#include "support/catch.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/torch.h>

#include <optional>

#include "support/default_device.h"
#include "support/same_bits.h"

namespace {

using remat::CurrentStreams;
using remat::default_device;
using remat::KeptStreams;

bool uses_cuda() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return false;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  return allocator && allocator->initialized();
}

const c10::impl::DeviceGuardImplInterface& cuda() {
  return *c10::impl::getDeviceGuardImpl(c10::kCUDA);
}

c10::Stream new_stream(c10::DeviceIndex device = 0) {
  return cuda().getNewStream({c10::kCUDA, device});
}

c10::Stream current_stream(c10::DeviceIndex device = 0) {
  return cuda().getStream({c10::kCUDA, device});
}

// This is the first test of its program: CUDA has not been used before it.
TEST_CASE("A process that uses no accelerator has the default streams and starts none",
          "[tape][streams]") {
  REQUIRE_FALSE(uses_cuda());
  const CurrentStreams streams = CurrentStreams::read();
  CHECK_FALSE(streams.began_without_accelerator());
  CHECK_FALSE(streams.changed());
  {
    const KeptStreams replay(streams);
    remat::UsedStreams used(streams);
    used.note();
    CHECK_FALSE(streams.changed());
  }
  CHECK_FALSE(uses_cuda());
  torch::ones({1});
  CHECK(streams.began_without_accelerator() == default_device().is_cuda());
  CHECK_FALSE(streams.changed());
}

TEST_CASE("A replay has the streams of its forward, and its thread's return", "[tape][streams]") {
  if (!default_device().is_cuda()) return;
  torch::ones({1});
  const c10::Stream side = new_stream();
  std::optional<CurrentStreams> forward;
  {
    const c10::StreamGuard guard(side);
    forward = CurrentStreams::read();
    CHECK_FALSE(forward->changed());
  }
  CHECK(forward->changed());
  const c10::Stream other = new_stream();
  const c10::StreamGuard guard(other);
  {
    const KeptStreams replay(*forward);
    CHECK(current_stream() == side);
    CHECK_FALSE(forward->changed());
    cuda().exchangeStream(new_stream());  // the replay's function sets another stream for good
  }
  CHECK(current_stream() == other);
}

TEST_CASE("A replay has the device of its forward, and its thread's returns", "[tape][streams]") {
  if (!default_device().is_cuda()) return;
  torch::ones({1});
  if (cuda().deviceCount() < 2) return;
  const c10::Stream side = new_stream(1);
  std::optional<CurrentStreams> forward;
  {
    const c10::StreamGuard guard(side);  // which makes its device current, too
    forward = CurrentStreams::read();
  }
  CHECK(cuda().getDevice().index() == 0);
  CHECK(forward->changed());
  {
    const KeptStreams replay(*forward);
    CHECK(cuda().getDevice().index() == 1);
    CHECK(current_stream(1) == side);
    CHECK(current_stream(0) == cuda().getDefaultStream({c10::kCUDA, 0}));
  }
  CHECK(cuda().getDevice().index() == 0);
  CHECK_FALSE(current_stream(1) == side);
  {
    const remat::KeptStreams kept;
    cuda().setDevice({c10::kCUDA, 1});
  }
  CHECK(cuda().getDevice().index() == 0);
}

TEST_CASE("The first stream waits for the streams that a replay has used", "[tape][streams]") {
  if (!default_device().is_cuda()) return;
  const at::Tensor x = torch::zeros({1 << 20});
  current_stream().synchronize();
  const c10::Stream side = new_stream();
  const CurrentStreams first = CurrentStreams::read();
  {
    remat::UsedStreams used(first);
    const c10::StreamGuard guard(side);
    used.note();
    for (int i = 0; i < 20; ++i) x.add_(1);
  }
  const at::Tensor read = x.clone();
  CHECK(same_bits(read, torch::full({1 << 20}, 20.F)));
}

}  // namespace
