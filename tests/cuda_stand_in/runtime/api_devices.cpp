// SPDX-License-Identifier: BSD-3-Clause

// Entry points about devices.
#include <algorithm>
#include <cstdio>

#include "host_kernels.h"
#include "runtime.h"

using namespace cuda_stand_in;

namespace {

bool is_device(int device) {
  return device >= 0 && device < LockedRuntime()->settings.devices;
}

// The sizes are an A100's.
void describe_multiprocessors(cudaDeviceProp& p) {
  p.multiProcessorCount = 108;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
}

void describe_memory(cudaDeviceProp& p) {
  p.totalGlobalMem = LockedRuntime()->settings.capacity_bytes;
  p.totalConstMem = 64 << 10;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 163 << 10;
  p.sharedMemPerMultiprocessor = 164 << 10;
  p.reservedSharedMemPerBlock = 1 << 10;
  p.l2CacheSize = 40 << 20;
  p.memoryBusWidth = 5120;
  p.memPitch = 2147483647;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
}

void describe_features(cudaDeviceProp& p) {
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.cooperativeLaunch = 1;
  p.streamPrioritiesSupported = p.hostRegisterSupported = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.asyncEngineCount = 2;
}

int attribute_of(const cudaDeviceProp& p, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(p.sharedMemPerMultiprocessor);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrMaxRegistersPerBlock:
      return p.regsPerBlock;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return p.regsPerMultiprocessor;
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrL2CacheSize:
      return p.l2CacheSize;
    case cudaDevAttrGlobalMemoryBusWidth:
      return p.memoryBusWidth;
    case cudaDevAttrClockRate:
      return 1410000;
    case cudaDevAttrMemoryClockRate:
      return 1215000;
    case cudaDevAttrPciBusId:
      return p.pciBusID;
    case cudaDevAttrUnifiedAddressing:
      return p.unifiedAddressing;
    case cudaDevAttrConcurrentKernels:
      return p.concurrentKernels;
    case cudaDevAttrHostRegisterSupported:
      return p.hostRegisterSupported;
    case cudaDevAttrCooperativeLaunch:
      return p.cooperativeLaunch;
    default:
      return 0;  // a feature that the stand-in does not have
  }
}

}  // namespace

CUDA_STAND_IN_API cudaError_t cudaGetDeviceCount(int* count) {
  // Waiting for the first allocation would be too late: some ops allocate after they have looked up
  // their kernel.
  load_host_kernels();
  *count = LockedRuntime()->settings.devices;
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

CUDA_STAND_IN_API cudaError_t cudaGetDevice(int* device) {
  *device = this_thread().device;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  this_thread().device = device;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return fail(cudaErrorInvalidDevice);
  *can = 0;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return fail(cudaErrorPeerAccessUnsupported);
}

CUDA_STAND_IN_API cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDeviceSynchronize() {
  const LockedRuntime runtime;
  const int device = this_thread().device;
  runtime->streams.run_device(device);
  runtime->clock.host_waits_until(runtime->streams.device_free_at_ns(device));
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "CUDA stand-in");
  p->uuid.bytes[0] = static_cast<char>(device + 1);
  p->pciBusID = device + 1;
  const int capability = LockedRuntime()->settings.compute_capability;
  p->major = capability / 10;
  p->minor = capability % 10;
  describe_multiprocessors(*p);
  describe_memory(*p);
  describe_features(*p);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                     int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  *value = attribute_of(properties, attribute);
  return cudaSuccess;
}
