// SPDX-License-Identifier: BSD-3-Clause

// Functions by which a test controls the CUDA stand-in and asks what it has seen. All of them are
// defined in the stand-in's libcudart.so.13. A program never links them: it finds them with
// dlsym(RTLD_DEFAULT, name), and finds none on a real GPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Returns where the host may touch the bytes of device memory; returns any other pointer unchanged.
void* cuda_stand_in_host_address(const void* p);

// Returns 1 if `p` is an address of device memory, allocated or not, else 0.
int cuda_stand_in_is_device(const void* p);

// Calls `run(data)` when the stream gets there. A null stream is the default stream of the calling
// thread's current device.
void cuda_stand_in_enqueue(void* stream, void (*run)(void*), void* data);

// Launches a kernel that costs `flops` of virtual time.
void cuda_stand_in_spend_flops(void* stream, double flops);

// Counts a launch that costs no time, such as a library call that does nothing here.
void cuda_stand_in_count_launch(const char* name);

// Adds `by`, +1 or -1, to a counter of the calling thread. While the counter is above 0, the host
// computes what the thread launches, so its launches are not garbage.
void cuda_stand_in_covered(int by);

// Returns the number of launches that nobody computed. If `print` is not 0, also prints their names
// to standard error.
uint64_t cuda_stand_in_garbage(int print);

// Returns the number of invalid accesses: to device memory that is not allocated, copies of the
// wrong kind, and frees of memory that is not allocated.
uint64_t cuda_stand_in_faults(void);

// Sets the counts of garbage and of faults to 0.
void cuda_stand_in_reset(void);

// Returns the number of entries that wait in all streams.
uint64_t cuda_stand_in_pending(void);

// Returns the number of launches so far, computed on the host or not.
uint64_t cuda_stand_in_launches(void);

// Returns the bytes allocated on a device, each allocation rounded up to 2 MiB.
size_t cuda_stand_in_used(int device);

// Runs all queued work, then sets the order of streams: eager, lazy, side-lazy, side-eager or
// random. `seed` is for random.
void cuda_stand_in_set_order(const char* order, unsigned seed);

// Sets the memory of each device, in bytes.
void cuda_stand_in_set_capacity(size_t bytes);

// Makes the stand-in ignore some synchronization, to show that a test notices. Bits: 1 waits of
// side streams for events, 2 waits of default streams for events, 4 queries of events (which then
// always say that the event has happened), 8 waits of the host for events.
void cuda_stand_in_leave_out(int what);

// Returns the host's time on the virtual clock, in nanoseconds.
double cuda_stand_in_host_ns(void);

// Advances the host's time on the virtual clock by this many nanoseconds.
void cuda_stand_in_host_spend_ns(double ns);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
