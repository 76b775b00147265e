// SPDX-License-Identifier: BSD-3-Clause

// Entry points that register and launch kernels. No kernel of the device runs here.
#include <algorithm>

#include "runtime.h"

using namespace cuda_stand_in;

namespace {

constexpr int kMaxThreadsPerBlock = 1024;
constexpr unsigned kMaxGridYZ = 65535;

bool is_valid(dim3 grid, dim3 block) {
  const auto is_empty = [](dim3 size) { return size.x == 0 || size.y == 0 || size.z == 0; };
  return !is_empty(grid) && !is_empty(block) && grid.y <= kMaxGridYZ && grid.z <= kMaxGridYZ &&
         block.x * block.y * block.z <= kMaxThreadsPerBlock;
}

double volume(dim3 size) {
  return static_cast<double>(size.x) * size.y * size.z;
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, cudaStream_t handle) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  if (!is_valid(grid, block)) return fail(cudaErrorInvalidConfiguration);
  Stream& stream = stream_of(runtime, handle);
  if (stream.device != this_thread().device) return fail(cudaErrorInvalidResourceHandle);
  const Settings& settings = runtime->settings;
  runtime->clock.spend(stream, Engine::kCompute,
                       settings.launch_ns + volume(grid) * volume(block) * settings.thread_ns);
  const char* const name = runtime->launches.name_of(kernel);
  runtime->launches.count(name);
  note(runtime, "%s, %.0f blocks of %.0f threads on stream %d, until %.0f ns", name, volume(grid),
       volume(block), stream.id, stream.free_at_ns);
  runtime->streams.enqueue(stream, {});
  return cudaSuccess;
}

}  // namespace

CUDA_STAND_IN_API void** __cudaRegisterFatBinary(void*) {
  static void* module = nullptr;
  return &module;
}

CUDA_STAND_IN_API void __cudaRegisterFatBinaryEnd(void**) {}

CUDA_STAND_IN_API void __cudaUnregisterFatBinary(void**) {}

CUDA_STAND_IN_API char __cudaInitModule(void**) {
  return 1;
}

CUDA_STAND_IN_API void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name,
                                              int, uint3*, uint3*, dim3*, dim3*, int*) {
  LockedRuntime()->launches.name_kernel(kernel, name);
}

CUDA_STAND_IN_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                       cudaStream_t stream) {
  this_thread().configuration = {grid, block, shared_bytes, stream};
  return 0;
}

CUDA_STAND_IN_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                         size_t* shared_bytes, void* stream) {
  const LaunchConfiguration& configuration = this_thread().configuration;
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**,
                                                 size_t, cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}

CUDA_STAND_IN_API cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**,
                                               size_t, cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}

CUDA_STAND_IN_API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block,
                                                          void**, size_t, cudaStream_t stream) {
  return launch(kernel, grid, block, stream);
}

CUDA_STAND_IN_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration,
                                                  const void* kernel, void**) {
  return launch(kernel, configuration->gridDim, configuration->blockDim, configuration->stream);
}

CUDA_STAND_IN_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreadsPerBlock;
  attributes->numRegs = 32;
  attributes->ptxVersion = LockedRuntime()->settings.compute_capability;
  attributes->binaryVersion = attributes->ptxVersion;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int block_threads, size_t, unsigned) {
  *blocks = std::clamp(2048 / std::max(block_threads, 1), 1, 32);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                            const void* kernel,
                                                                            int block_threads,
                                                                            size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block_threads,
                                                                shared_bytes, 0);
}

CUDA_STAND_IN_API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
