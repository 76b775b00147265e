// SPDX-License-Identifier: BSD-3-Clause

// The whole state of the stand-in, one per process, and the lock that guards it.
#pragma once

#include <cstdint>
#include <mutex>

#include "device_memory.h"
#include "launches.h"
#include "pinned_memory.h"
#include "settings.h"
#include "streams.h"
#include "thread_state.h"
#include "virtual_clock.h"

// Marks an entry point that programs see.
#define CUDA_STAND_IN_API extern "C" __attribute__((visibility("default")))

namespace cuda_stand_in {

// Bits that cuda_stand_in_leave_out() takes.
enum LeftOut { kSideWaits = 1, kDefaultWaits = 2, kEventQueries = 4, kHostWaits = 8 };

struct Runtime {
  Settings settings = settings_of_environment();
  DeviceMemory memory;
  PinnedMemory pinned;
  Streams streams{settings};
  VirtualClock clock;
  Launches launches;
  uint64_t faults = 0;
  int left_out = 0;
  // True in a forked child whose parent had used a device. As on a GPU, the child cannot use one.
  bool is_the_parents = false;
};

// Holds the lock of the runtime. The lock is recursive, since functions that a stream runs may call
// the runtime.
class LockedRuntime {
 public:
  LockedRuntime();
  Runtime* operator->() const;

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

// Needs no lock.
const DeviceMemory& device_memory();

// Prints to standard error if CUDA_STAND_IN_LOG is set.
__attribute__((format(printf, 2, 3))) void note(const LockedRuntime& runtime, const char* format,
                                                ...);

// Counts and prints an access that would be illegal on a GPU.
__attribute__((format(printf, 2, 3))) void fault(const LockedRuntime& runtime, const char* format,
                                                 ...);

// Returns the stream of a handle that the calling thread uses.
Stream& stream_of(const LockedRuntime& runtime, cudaStream_t handle);

// Returns the host's address of the bytes. Counts a fault and returns null if they are device
// memory that is not allocated.
char* accessible(const LockedRuntime& runtime, const void* p, size_t bytes, const char* by);

// Returns cudaSuccess if this process may use a device.
cudaError_t check_usable(const LockedRuntime& runtime);

}  // namespace cuda_stand_in
