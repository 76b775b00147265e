// SPDX-License-Identifier: BSD-3-Clause

// The hooks that LibTorch calls on the device behind PrivateUse1.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <remat/placeholder/visibility.h>

namespace remat {

/// One device, always available, without memory.
///
/// Note [The accelerator]: once PrivateUse1 has a name, `at::getAccelerator()` returns PrivateUse1,
/// where it returned CUDA before (whenever LibTorch's CUDA libraries are loaded, with or without a
/// GPU). Autograd's nodes ask the accelerator for their stream, so from then on a node on CUDA has
/// none, and the engine asserts that it has one. Pinned memory, DataLoader and torch.compile ask
/// the accelerator, too. So if another accelerator has a device, register_device() throws before it
/// changes anything. Without a GPU nothing can be pinned.
class REMAT_API DryHooks final : public at::PrivateUse1HooksInterface {
 public:
  DryHooks();

  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*index*/) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override;
  at::Generator getNewGenerator(c10::DeviceIndex index) const override;

  bool isPinnedPtr(const void* /*data*/) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override;

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const override;

 private:
  at::Generator default_generator_;
};

}  // namespace remat
