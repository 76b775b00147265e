// SPDX-License-Identifier: BSD-3-Clause

// Entry points about streams.
#include <utility>

#include "event.h"
#include "runtime.h"

using namespace cuda_stand_in;

CUDA_STAND_IN_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags,
                                                           int priority) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  Stream& stream = runtime->streams.create(this_thread().device, flags, priority);
  *handle = reinterpret_cast<cudaStream_t>(&stream);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

CUDA_STAND_IN_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const LockedRuntime runtime;
  Stream& stream = stream_of(runtime, handle);
  if (stream.is_default) return fail(cudaErrorInvalidResourceHandle);
  runtime->streams.run(stream, stream.enqueued);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const LockedRuntime runtime;
  *priority = stream_of(runtime, handle).priority;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const LockedRuntime runtime;
  Stream& stream = stream_of(runtime, handle);
  runtime->streams.run(stream, stream.enqueued);
  runtime->clock.host_waits_until(stream.free_at_ns);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const LockedRuntime runtime;
  Stream& stream = stream_of(runtime, handle);
  if (stream.is_idle()) return cudaSuccess;
  if (++stream.polls % runtime->settings.polls != 0) return fail(cudaErrorNotReady);
  runtime->streams.run(stream, stream.enqueued);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle,
                                                  unsigned) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  const Event& event = *event_of(event_handle);
  Stream& stream = stream_of(runtime, handle);
  if (!event.stream || (runtime->left_out & (stream.is_default ? kDefaultWaits : kSideWaits)))
    return cudaSuccess;
  stream.free_at_ns = std::max(stream.free_at_ns, event.at_ns);
  note(runtime, "stream %d waits for stream %d, until %.0f ns", stream.id, event.stream->id,
       event.at_ns);
  runtime->streams.enqueue(stream, [from = event.stream, position = event.position] {
    LockedRuntime()->streams.run(*from, position);
  });
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                                                 void* data) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  runtime->streams.enqueue(stream_of(runtime, handle), [function, data] { function(data); });
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamAddCallback(cudaStream_t handle,
                                                    cudaStreamCallback_t function, void* data,
                                                    unsigned) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  runtime->streams.enqueue(stream_of(runtime, handle),
                           [handle, function, data] { function(handle, cudaSuccess, data); });
  return cudaSuccess;
}

// No stream is ever captured.

CUDA_STAND_IN_API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t,
                                                       cudaStreamCaptureStatus* status,
                                                       unsigned long long* id, cudaGraph_t*,
                                                       const cudaGraphNode_t**,
                                                       const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(this_thread().capture_mode, *mode);
  return cudaSuccess;
}
