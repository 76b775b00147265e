// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta as LibTorch sees it: its guard, its hooks, and the factories of its
// tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/placeholder/visibility.h>

namespace remat {

/// Autograd's engine indexes its tables by the device of a stream, so the device has an index here,
/// unlike in LibTorch's NoOpDeviceGuardImpl.
class REMAT_API DryDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return dry_device(); }
  c10::Device getDevice() const override { return dry_device(); }
  void setDevice(c10::Device device) const override;
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
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, dry_device()); }
};

/// One device, always available, without memory.
///
/// Note [The accelerator]: once PrivateUse1 has a name, `at::getAccelerator()` returns PrivateUse1,
/// where it returned CUDA before (whenever LibTorch's CUDA libraries are loaded, with or without a
/// GPU). Autograd's nodes ask the accelerator for their stream, so from then on a node on CUDA has
/// no stream, and the engine asserts that it has one. Pinned memory, DataLoader and torch.compile
/// ask the accelerator, too. So if another accelerator has a device, register_device() throws
/// before it changes anything. Without a GPU nothing can be pinned.
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

/// Kernels of aten::empty and aten::empty_strided. Usable from any thread. They throw ValueError
/// for a second device or pinned memory, NotImplementedError for a layout that is not strided.
REMAT_API at::Tensor dry_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> format);
REMAT_API at::Tensor dry_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                       std::optional<c10::ScalarType> dtype,
                                       std::optional<c10::Layout> layout,
                                       std::optional<c10::Device> device,
                                       std::optional<bool> pin_memory);

/// Module::to() replaces the data of parameters only if this returns true.
REMAT_API bool has_dry_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

/// Allocates blocks of any size that have no memory: their address is null. Never destroyed.
REMAT_API c10::Allocator* dry_allocator();

/// Makes a storage without a tensor, as Python does to copy a storage.
REMAT_API c10::intrusive_ptr<c10::StorageImpl> make_dry_storage_impl(
    c10::StorageImpl::use_byte_size_t in_bytes, c10::SymInt size_bytes, c10::DataPtr data,
    c10::Allocator* allocator, bool resizable);

}  // namespace remat
