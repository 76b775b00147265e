// SPDX-License-Identifier: BSD-3-Clause

// Holds the state of the stand-in, and takes care of it when the process forks.
#include "runtime.h"

#include <pthread.h>

#include <cstdarg>
#include <cstdio>
#include <new>

namespace cuda_stand_in {
namespace {

// Never destroyed: threads and destructors of the program use the runtime until the process ends.
struct Process {
  std::recursive_mutex mutex;
  Runtime runtime;
};

Process& process();

void before_fork() {
  process().mutex.lock();
}

void after_fork_in_parent() {
  process().mutex.unlock();
}

void after_fork_in_child() {
  // The child's thread id differs, so the inherited mutex would not recognise its owner.
  new (&process().mutex) std::recursive_mutex;
  Runtime& runtime = process().runtime;
  if (!runtime.memory.is_mapped() && runtime.streams.pending() == 0) return;
  runtime.is_the_parents = true;
  runtime.streams.forget_work();
  if (runtime.memory.is_mapped()) runtime.memory.leave_to_parent();
}

Process* make_process() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  return new Process;
}

Process& process() {
  static Process* const the_process = make_process();
  return *the_process;
}

void print(const char* what, const char* format, va_list arguments) {
  std::fputs(what, stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
}

}  // namespace

LockedRuntime::LockedRuntime() : guard_(process().mutex) {}

Runtime* LockedRuntime::operator->() const {
  return &process().runtime;
}

const DeviceMemory& device_memory() {
  return process().runtime.memory;
}

void note(const LockedRuntime& runtime, const char* format, ...) {
  if (!runtime->settings.log) return;
  va_list arguments;
  va_start(arguments, format);
  print("[cuda stand-in] ", format, arguments);
  va_end(arguments);
}

void fault(const LockedRuntime& runtime, const char* format, ...) {
  ++runtime->faults;
  va_list arguments;
  va_start(arguments, format);
  print("[cuda stand-in] fault: ", format, arguments);
  va_end(arguments);
}

Stream& stream_of(const LockedRuntime& runtime, cudaStream_t handle) {
  return runtime->streams.of(handle, this_thread().device);
}

char* accessible(const LockedRuntime& runtime, const void* p, size_t bytes, const char* by) {
  if (runtime->memory.contains(p) && !runtime->memory.is_allocated(p, bytes)) {
    fault(runtime, "%s touches %zu bytes of device memory at %p, which are not allocated", by,
          bytes, p);
    return nullptr;
  }
  return runtime->memory.host_address(p);
}

cudaError_t check_usable(const LockedRuntime& runtime) {
  return runtime->is_the_parents ? fail(cudaErrorInitializationError) : cudaSuccess;
}

}  // namespace cuda_stand_in
