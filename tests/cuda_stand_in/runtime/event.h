// SPDX-License-Identifier: BSD-3-Clause

// An event: a place in a stream's queue, and the virtual time at which the stream comes to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "streams.h"

namespace cuda_stand_in {

struct Event {
  int device;
  bool has_timing;
  Stream* stream = nullptr;  // null until it is recorded
  uint64_t position = 0;     // the event has happened when this many entries of the stream are done
  double at_ns = 0;
  int polls = 0;

  bool has_happened() const { return !stream || stream->done >= position; }
};

inline Event* event_of(cudaEvent_t handle) {
  return reinterpret_cast<Event*>(handle);
}

}  // namespace cuda_stand_in
