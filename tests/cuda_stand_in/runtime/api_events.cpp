// SPDX-License-Identifier: BSD-3-Clause

// Entry points about events.
#include "event.h"

#include <algorithm>

#include "runtime.h"

using namespace cuda_stand_in;

namespace {

// Virtual time of the host that a query takes, where queries follow the clock.
constexpr double kQueryNs = 1000;

}  // namespace

CUDA_STAND_IN_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  if (flags & cudaEventInterprocess) return fail(cudaErrorNotSupported);
  auto* const event = new Event{
      .device = this_thread().device,
      .has_timing = !(flags & cudaEventDisableTiming),
  };
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

CUDA_STAND_IN_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete event_of(handle);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event_handle,
                                                       cudaStream_t handle, unsigned) {
  const LockedRuntime runtime;
  if (const cudaError_t error = check_usable(runtime)) return error;
  Event& event = *event_of(event_handle);
  Stream& stream = stream_of(runtime, handle);
  if (event.device != stream.device) return fail(cudaErrorInvalidResourceHandle);
  event.stream = &stream;
  event.at_ns = std::max(stream.free_at_ns, runtime->clock.host_ns());
  event.position = stream.enqueued + 1;
  event.polls = 0;
  note(runtime, "event on stream %d at %.0f ns", stream.id, event.at_ns);
  runtime->streams.enqueue(stream, {});
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

CUDA_STAND_IN_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const LockedRuntime runtime;
  Event& event = *event_of(handle);
  if (!event.stream || (runtime->left_out & kEventQueries)) return cudaSuccess;
  if (runtime->settings.queries_follow_clock && event.at_ns > runtime->clock.host_ns()) {
    runtime->clock.host_works_for(kQueryNs);
    return fail(cudaErrorNotReady);
  }
  if (event.has_happened()) return cudaSuccess;
  if (++event.polls < runtime->settings.polls) return fail(cudaErrorNotReady);
  runtime->streams.run(*event.stream, event.position);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const LockedRuntime runtime;
  const Event& event = *event_of(handle);
  if (!event.stream || (runtime->left_out & kHostWaits)) return cudaSuccess;
  runtime->streams.run(*event.stream, event.position);
  runtime->clock.host_waits_until(event.at_ns);
  return cudaSuccess;
}

CUDA_STAND_IN_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin_handle,
                                                   cudaEvent_t end_handle) {
  const LockedRuntime runtime;
  const Event& begin = *event_of(begin_handle);
  const Event& end = *event_of(end_handle);
  if (!begin.stream || !end.stream || !begin.has_timing || !end.has_timing ||
      begin.device != end.device)
    return fail(cudaErrorInvalidResourceHandle);
  if (!begin.has_happened() || !end.has_happened()) return fail(cudaErrorNotReady);
  *ms = static_cast<float>((end.at_ns - begin.at_ns) * 1e-6);
  return cudaSuccess;
}
