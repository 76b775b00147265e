// SPDX-License-Identifier: BSD-3-Clause

// Entry points that allocate and describe memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "host_kernels.h"
#include "runtime.h"

using namespace cuda_stand_in;

namespace {

cudaError_t allocate(const LockedRuntime& runtime, void** p, size_t bytes) {
  if (const cudaError_t error = check_usable(runtime)) return error;
  const int device = this_thread().device;
  *p = runtime->memory.allocate(device, bytes, runtime->settings.capacity_bytes);
  note(runtime, "cudaMalloc of %zu bytes on device %d: %p", bytes, device, *p);
  if (!*p) return fail(cudaErrorMemoryAllocation);
  if (runtime->settings.poison >= 0)
    std::memset(runtime->memory.host_address(*p), runtime->settings.poison, bytes);
  return cudaSuccess;
}

// Freeing memory waits for all work of its device, as on a GPU.
cudaError_t release(const LockedRuntime& runtime, void* p) {
  if (const cudaError_t error = check_usable(runtime)) return error;
  if (runtime->memory.contains(p)) runtime->streams.run_device(runtime->memory.device_of(p));
  note(runtime, "cudaFree of %p", p);
  if (runtime->memory.release(p)) return cudaSuccess;
  fault(runtime, "cudaFree of %p, which no allocation begins at", p);
  return fail(cudaErrorInvalidValue);
}

// Device memory of a variable; each device has a copy.
std::map<std::pair<const void*, int>, void*>& addresses_of_symbols() {
  static auto& addresses = *new std::map<std::pair<const void*, int>, void*>;
  return addresses;
}

std::map<const void*, size_t>& bytes_of_symbols() {
  static auto& bytes = *new std::map<const void*, size_t>;
  return bytes;
}

}  // namespace

CUDA_STAND_IN_API cudaError_t cudaMalloc(void** p, size_t bytes) {
  load_host_kernels();
  return allocate(LockedRuntime(), p, bytes);
}

CUDA_STAND_IN_API cudaError_t cudaFree(void* p) {
  return p ? release(LockedRuntime(), p) : cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const LockedRuntime runtime;
  *total = runtime->settings.capacity_bytes;
  *free = *total - std::min(*total, runtime->memory.used_bytes(this_thread().device));
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  *p = runtime->pinned.allocate(bytes);
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

// Runs queued copies first, since they may use the memory; cudaHostUnregister() does so, too.
CUDA_STAND_IN_API cudaError_t cudaFreeHost(void* p) {
  const LockedRuntime runtime;
  if (!p) return cudaSuccess;
  runtime->streams.run_all();
  return runtime->pinned.release(p) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

CUDA_STAND_IN_API cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  return runtime->pinned.pin(p, bytes) ? cudaSuccess : fail(cudaErrorHostMemoryAlreadyRegistered);
}

CUDA_STAND_IN_API cudaError_t cudaHostUnregister(void* p) {
  const LockedRuntime runtime;
  runtime->streams.run_all();
  return runtime->pinned.unpin(p) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}

CUDA_STAND_IN_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                       const void* p) {
  const LockedRuntime runtime;
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  if (runtime->memory.contains(p)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = runtime->memory.device_of(p);
    attributes->devicePointer = const_cast<void*>(p);
  } else if (runtime->pinned.contains(p)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = this_thread().device;
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(p);
  }
  return cudaSuccess;
}

CUDA_STAND_IN_API void __cudaRegisterVar(void**, char* symbol, char*, const char*, int,
                                         size_t bytes, int, int) {
  const LockedRuntime runtime;
  bytes_of_symbols()[symbol] = bytes;
}

CUDA_STAND_IN_API cudaError_t cudaGetSymbolAddress(void** p, const void* symbol) {
  const LockedRuntime runtime;
  void*& address = addresses_of_symbols()[{symbol, this_thread().device}];
  if (!address)
    if (const cudaError_t error = allocate(runtime, &address, bytes_of_symbols()[symbol]))
      return error;
  *p = address;
  return cudaSuccess;
}
