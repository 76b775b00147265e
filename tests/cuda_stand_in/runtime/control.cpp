// SPDX-License-Identifier: BSD-3-Clause

// The functions of control.h.
#include "../control.h"

#include "runtime.h"

using namespace cuda_stand_in;

void* cuda_stand_in_host_address(const void* p) {
  return device_memory().host_address(p);
}

int cuda_stand_in_is_device(const void* p) {
  return device_memory().contains(p);
}

void cuda_stand_in_enqueue(void* stream, void (*run)(void*), void* data) {
  const LockedRuntime runtime;
  if (check_usable(runtime) != cudaSuccess) return;
  runtime->streams.enqueue(stream_of(runtime, static_cast<cudaStream_t>(stream)),
                           [run, data] { run(data); });
}

void cuda_stand_in_spend_flops(void* handle, double flops) {
  const LockedRuntime runtime;
  if (check_usable(runtime) != cudaSuccess) return;
  Stream& stream = stream_of(runtime, static_cast<cudaStream_t>(handle));
  const Settings& settings = runtime->settings;
  runtime->clock.spend(stream, Engine::kCompute,
                       settings.launch_ns + flops / settings.flops_per_ns);
  runtime->launches.count("a matrix product");
  runtime->streams.enqueue(stream, {});
}

void cuda_stand_in_count_launch(const char* name) {
  LockedRuntime()->launches.count(name);
}

void cuda_stand_in_covered(int by) {
  this_thread().covered += by;
}

uint64_t cuda_stand_in_garbage(int print) {
  const LockedRuntime runtime;
  if (print) runtime->launches.print_garbage();
  return runtime->launches.garbage();
}

uint64_t cuda_stand_in_faults() {
  return LockedRuntime()->faults;
}

void cuda_stand_in_reset() {
  const LockedRuntime runtime;
  runtime->launches.reset_garbage();
  runtime->faults = 0;
}

uint64_t cuda_stand_in_pending() {
  return LockedRuntime()->streams.pending();
}

uint64_t cuda_stand_in_launches() {
  return LockedRuntime()->launches.launches();
}

size_t cuda_stand_in_used(int device) {
  if (device < 0 || device >= kMaxDevices) return 0;
  return LockedRuntime()->memory.used_bytes(device);
}

void cuda_stand_in_set_order(const char* order, unsigned seed) {
  LockedRuntime()->streams.set_order(order_named(order), seed);
}

void cuda_stand_in_set_capacity(size_t bytes) {
  LockedRuntime()->settings.capacity_bytes = bytes;
}

void cuda_stand_in_leave_out(int what) {
  LockedRuntime()->left_out = what;
}

double cuda_stand_in_host_ns() {
  return LockedRuntime()->clock.host_ns();
}

void cuda_stand_in_host_spend_ns(double ns) {
  LockedRuntime()->clock.host_works_for(ns);
}
