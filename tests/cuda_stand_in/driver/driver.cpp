// SPDX-License-Identifier: BSD-3-Clause

// A stand-in for libcuda.so.1: the driver functions that LibTorch calls. Modules load as if they
// had kernels, and their launches do nothing.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../control.h"

// The header of the driver's API gives many functions two names, so it is not included; results are
// CUresult, handles void*.
#define CUDA_STAND_IN_DRIVER_API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kSuccess = 0, kInvalidValue = 1, kNotSupported = 801 };

// Every handle points to this.
int something;

Result set(void** handle) {
  *handle = &something;
  return kSuccess;
}

int launch(const void* kernel, dim3 grid, dim3 block, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, nullptr, 0, stream);
}

}  // namespace

CUDA_STAND_IN_DRIVER_API int cuInit(unsigned) {
  int devices = 0;
  return cudaGetDeviceCount(&devices);
}

CUDA_STAND_IN_DRIVER_API int cuDriverGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}

CUDA_STAND_IN_DRIVER_API int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuGetErrorName(int error, const char** text) {
  *text = cudaGetErrorName(static_cast<cudaError_t>(error));
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuDeviceGetCount(int* devices) {
  return cudaGetDeviceCount(devices);
}

CUDA_STAND_IN_DRIVER_API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
}

CUDA_STAND_IN_DRIVER_API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  if (flags) *flags = 0;
  *is_active = 1;
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuDevicePrimaryCtxRetain(void** context, int) {
  return set(context);
}

CUDA_STAND_IN_DRIVER_API int cuCtxGetCurrent(void** context) {
  return set(context);
}

CUDA_STAND_IN_DRIVER_API int cuCtxSetCurrent(void*) {
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuModuleLoad(void** module, const char*) {
  return set(module);
}

CUDA_STAND_IN_DRIVER_API int cuModuleLoadData(void** module, const void*) {
  return set(module);
}

CUDA_STAND_IN_DRIVER_API int cuModuleLoadDataEx(void** module, const void*, unsigned, void*,
                                                void**) {
  return set(module);
}

CUDA_STAND_IN_DRIVER_API int cuModuleGetFunction(void** function, void*, const char*) {
  return set(function);
}

CUDA_STAND_IN_DRIVER_API int cuModuleUnload(void*) {
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 0 ? 1024 : 0;  // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuFuncSetAttribute(void*, int, int) {
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuFuncSetCacheConfig(void*, int) {
  return kSuccess;
}

CUDA_STAND_IN_DRIVER_API int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y,
                                            unsigned grid_z, unsigned block_x, unsigned block_y,
                                            unsigned block_z, unsigned, cudaStream_t stream, void**,
                                            void**) {
  return launch(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream);
}

CUDA_STAND_IN_DRIVER_API int cuLaunchCooperativeKernel(void* kernel, unsigned grid_x,
                                                       unsigned grid_y, unsigned grid_z,
                                                       unsigned block_x, unsigned block_y,
                                                       unsigned block_z, unsigned,
                                                       cudaStream_t stream, void**) {
  return launch(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream);
}

CUDA_STAND_IN_DRIVER_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* kernel,
                                                                         int block_threads,
                                                                         size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, block_threads, shared_bytes);
}

CUDA_STAND_IN_DRIVER_API int cuPointerGetAttribute(void* value, int attribute, uintptr_t address) {
  enum { kContext = 1, kMemoryType = 2, kDeviceOrdinal = 9 };
  constexpr unsigned kDeviceMemory = 2;
  cudaPointerAttributes attributes;
  cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(address));
  if (attributes.type != cudaMemoryTypeDevice) return kInvalidValue;
  switch (attribute) {
    case kContext:
      return set(static_cast<void**>(value));
    case kMemoryType:
      *static_cast<unsigned*>(value) = kDeviceMemory;
      return kSuccess;
    case kDeviceOrdinal:
      *static_cast<int*>(value) = attributes.device;
      return kSuccess;
    default:
      return kNotSupported;
  }
}

// Linking of device code and tensor maps are absent.

CUDA_STAND_IN_DRIVER_API int cuLinkCreate_v2() {
  return kNotSupported;
}

CUDA_STAND_IN_DRIVER_API int cuLinkAddData_v2() {
  return kNotSupported;
}

CUDA_STAND_IN_DRIVER_API int cuLinkComplete() {
  return kNotSupported;
}

CUDA_STAND_IN_DRIVER_API int cuTensorMapEncodeTiled() {
  return kNotSupported;
}
