// SPDX-License-Identifier: BSD-3-Clause

// The devices that random programs run on, and the CUDA stand-in where there is one.
#include "fuzz/device.h"

#include <ATen/Functions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace remat::fuzz {
namespace {

constexpr std::array kOrders = {"eager", "lazy", "side-lazy", "side-eager", "random"};

bool wants_cuda() {
  for (const char* name : {"REMAT_FUZZ_DEVICE", "REMAT_TEST_DEVICE"}) {
    if (const char* const text = std::getenv(name)) return std::strcmp(text, "cuda") == 0;
  }
  return false;
}

/// Programs link LibTorch's CPU part alone. The CUDA part must be loaded before LibTorch first asks
/// whether it is there.
bool load_cuda() {
  if (!wants_cuda()) return false;
  TORCH_CHECK(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL),
              "[fuzz] REMAT_FUZZ_DEVICE: expected a LibTorch with CUDA, got ", dlerror());
  return true;
}

const bool kOnCuda = load_cuda();

/// Returns a function of the stand-in; null on a real device.
template <class Function>
Function* stand_in(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

void set_order(const char* order, uint64_t seed) {
  static auto* const set = stand_in<void(const char*, unsigned)>("cuda_stand_in_set_order");
  if (kOnCuda && set) set(order, static_cast<unsigned>(seed));
}

c10::impl::VirtualGuardImpl cuda() {
  return c10::impl::VirtualGuardImpl(at::kCUDA);
}

}  // namespace

bool on_cuda() {
  return kOnCuda;
}

at::Device main_device() {
  return kOnCuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::string order_of(uint64_t seed) {
  return kOrders[(seed * 0x9e3779b97f4a7c15 >> 32) % kOrders.size()];
}

void set_random_order(uint64_t seed) {
  set_order(order_of(seed).c_str(), seed);
}

void set_eager_order() {
  set_order("eager", 0);
}

void synchronize() {
  if (!kOnCuda) return;
  for (c10::DeviceIndex i = 0; i < cuda().deviceCount(); ++i) cuda().synchronizeDevice(i);
}

void finish_backwards() {
  if (!kOnCuda) return;
  for (c10::DeviceIndex i = 0; i < cuda().deviceCount(); ++i) {
    const at::Tensor leaf = at::zeros({}, at::Device(at::kCUDA, i)).requires_grad_();
    leaf.mul(2).backward();
  }
}

std::string device_faults() {
  if (!kOnCuda) return "";
  synchronize();
  static auto* const garbage = stand_in<uint64_t(int)>("cuda_stand_in_garbage");
  static auto* const faults = stand_in<uint64_t()>("cuda_stand_in_faults");
  static auto* const reset = stand_in<void()>("cuda_stand_in_reset");
  if (!garbage || !faults || !reset) return "";
  std::string found;
  if (garbage(0) > 0) found = c10::str(garbage(1), " launches that nobody has computed");
  if (faults() > 0) found += c10::str(found.empty() ? "" : ", ", faults(), " faults");
  reset();
  return found;
}

void forget_memory() {
  if (!kOnCuda || !c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
  auto* const allocator = at::getDeviceAllocator(at::kCUDA);
  if (allocator->initialized()) allocator->emptyCache();
}

void to_host(std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach().cpu();
  }
}

}  // namespace remat::fuzz
