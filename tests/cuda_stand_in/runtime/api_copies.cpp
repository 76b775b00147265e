// SPDX-License-Identifier: BSD-3-Clause

// Entry points that copy and fill memory.
#include <cstring>
#include <memory>

#include "runtime.h"

using namespace cuda_stand_in;

namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  cudaMemcpyKind kind;
};

bool has_right_kind(const LockedRuntime& runtime, const Copy& copy) {
  const bool to_device = runtime->memory.contains(copy.to);
  const bool from_device = runtime->memory.contains(copy.from);
  switch (copy.kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return true;
  }
}

cudaError_t check(const LockedRuntime& runtime, const Copy& copy) {
  if (const cudaError_t error = check_usable(runtime)) return error;
  if (!has_right_kind(runtime, copy)) {
    fault(runtime, "a copy of kind %d from %p to %p, which are of another kind", copy.kind,
          copy.from, copy.to);
    return fail(cudaErrorInvalidValue);
  }
  const bool is_right = accessible(runtime, copy.to, copy.bytes, "a copy") &&
                        accessible(runtime, copy.from, copy.bytes, "a copy");
  return is_right ? cudaSuccess : fail(cudaErrorInvalidValue);
}

void spend(const LockedRuntime& runtime, Stream& stream, const Copy& copy) {
  const DeviceMemory& memory = runtime->memory;
  const Settings& settings = runtime->settings;
  const bool is_local = memory.contains(copy.to) && memory.contains(copy.from) &&
                        memory.device_of(copy.to) == memory.device_of(copy.from);
  const Engine engine = is_local                     ? Engine::kCompute
                        : memory.contains(copy.from) ? Engine::kCopyOut
                                                     : Engine::kCopyIn;
  const double speed = is_local ? settings.memory_bytes_per_ns : settings.link_bytes_per_ns;
  runtime->clock.spend(stream, engine,
                       settings.launch_ns + static_cast<double>(copy.bytes) / speed);
  note(runtime, "copy of %zu bytes on stream %d, until %.0f ns", copy.bytes, stream.id,
       stream.free_at_ns);
}

// Runs when the stream comes to the copy; memory may have been freed meanwhile.
void move_bytes(const Copy& copy) {
  const LockedRuntime runtime;
  char* const to = accessible(runtime, copy.to, copy.bytes, "a copy in a stream");
  const char* const from = accessible(runtime, copy.from, copy.bytes, "a copy in a stream");
  if (to && from) std::memmove(to, from, copy.bytes);
}

bool is_pageable(const LockedRuntime& runtime, const void* p) {
  return !runtime->memory.contains(p) && !runtime->pinned.contains(p);
}

// The runtime stages copies from pageable memory, so that the program may change that memory at
// once.
void enqueue_staged(const LockedRuntime& runtime, Stream& stream, const Copy& copy) {
  std::shared_ptr<char[]> staged(new char[copy.bytes]);
  std::memcpy(staged.get(), copy.from, copy.bytes);
  runtime->streams.enqueue(stream, [staged, copy] {
    move_bytes({copy.to, staged.get(), copy.bytes, cudaMemcpyDefault});
  });
}

void wait(const LockedRuntime& runtime, Stream& stream) {
  runtime->streams.run(stream, stream.enqueued);
  runtime->clock.host_waits_until(stream.free_at_ns);
}

cudaError_t copy_async(const Copy& copy, cudaStream_t handle) {
  const LockedRuntime runtime;
  if (copy.bytes == 0) return cudaSuccess;
  if (const cudaError_t error = check(runtime, copy)) return error;
  Stream& stream = stream_of(runtime, handle);
  spend(runtime, stream, copy);
  if (is_pageable(runtime, copy.from)) {
    enqueue_staged(runtime, stream, copy);
  } else {
    runtime->streams.enqueue(stream, [copy] { move_bytes(copy); });
  }
  // The runtime cannot write pageable memory asynchronously.
  if (is_pageable(runtime, copy.to)) wait(runtime, stream);
  return cudaSuccess;
}

cudaError_t copy_and_wait(const Copy& copy) {
  if (const cudaError_t error = copy_async(copy, nullptr)) return error;
  const LockedRuntime runtime;
  wait(runtime, stream_of(runtime, nullptr));
  return cudaSuccess;
}

bool is_on(const LockedRuntime& runtime, const void* p, int device) {
  return runtime->memory.contains(p) && runtime->memory.device_of(p) == device;
}

}  // namespace

CUDA_STAND_IN_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                         cudaMemcpyKind kind) {
  return copy_and_wait({to, from, bytes, kind});
}

CUDA_STAND_IN_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_async({to, from, bytes, kind}, stream);
}

CUDA_STAND_IN_API cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from,
                                                  int from_device, size_t bytes,
                                                  cudaStream_t stream) {
  {
    const LockedRuntime runtime;
    if (bytes && (!is_on(runtime, to, to_device) || !is_on(runtime, from, from_device))) {
      fault(runtime, "a copy from %p to %p, which are not on devices %d and %d", from, to,
            from_device, to_device);
      return fail(cudaErrorInvalidValue);
    }
  }
  return copy_async({to, from, bytes, cudaMemcpyDeviceToDevice}, stream);
}

CUDA_STAND_IN_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                                                size_t from_pitch, size_t row_bytes, size_t rows,
                                                cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < rows; ++row) {
    const Copy copy = {static_cast<char*>(to) + row * to_pitch,
                       static_cast<const char*>(from) + row * from_pitch, row_bytes, kind};
    if (const cudaError_t error = copy_async(copy, stream)) return error;
  }
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes,
                                                 size_t offset, cudaMemcpyKind kind) {
  void* p = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&p, symbol)) return error;
  return cudaMemcpy(static_cast<char*>(p) + offset, from, bytes, kind);
}

CUDA_STAND_IN_API cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes,
                                              cudaStream_t handle) {
  const LockedRuntime runtime;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = check_usable(runtime)) return error;
  if (!accessible(runtime, p, bytes, "cudaMemset")) return fail(cudaErrorInvalidValue);
  Stream& stream = stream_of(runtime, handle);
  const Settings& settings = runtime->settings;
  runtime->clock.spend(
      stream, Engine::kCompute,
      settings.launch_ns + static_cast<double>(bytes) / settings.memory_bytes_per_ns);
  runtime->streams.enqueue(stream, [p, value, bytes] {
    const LockedRuntime later;
    if (char* const host = accessible(later, p, bytes, "cudaMemset in a stream"))
      std::memset(host, value, bytes);
  });
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaMemsetAsync(p, value, bytes, nullptr);
}
