// SPDX-License-Identifier: BSD-3-Clause

// Device, streams and events of remat_meta: one of each, with nothing to wait for.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Autograd's engine indexes its tables by the device of a stream, so unlike in LibTorch's
/// NoOpDeviceGuardImpl the device has an index.
class REMAT_API DryDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device device) const override { check(device); }
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*device*/) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*high*/) const override {
    return stream();
  }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override {
    return stream();
  }
  c10::Stream exchangeStream(c10::Stream /*stream*/) const override { return stream(); }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeDevice(c10::DeviceIndex /*index*/) const override {}

  void record(void** /*event*/, const c10::Stream& /*stream*/, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}

 private:
  static c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
  static void check(c10::Device device);
};

}  // namespace remat
