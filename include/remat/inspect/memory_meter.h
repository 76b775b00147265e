// SPDX-License-Identifier: BSD-3-Clause

// Exact bytes of tensor memory allocated in a scope, counted from reports of c10's allocators.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include <remat/engine/export.h>

namespace remat {

namespace detail {
class MeterState;
}  // namespace detail

/// Counts, from construction to destruction, what c10's allocators allocate and free. Sizes are
/// bytes as the allocator reports them: the requested size on the CPU, the rounded block size on
/// CUDA. A device without an index stands for all devices of its type together.
///
///     remat::MemoryMeter meter;
///     at::Tensor loss = model->forward(x);
///     int64_t resident_bytes = meter.current_bytes();
///
/// Blocks: a block belongs to the meters that were alive when it was allocated. Freeing a block
/// that is older than the meter changes nothing, so counts are never negative. Memory that does not
/// come from a c10 allocator (`from_blob`, `malloc` inside a kernel) is not counted.
///
/// Threads: the meter counts reports on the constructing thread and on every thread that carries
/// that thread's state: autograd's threads, and threads inside an `at::ThreadLocalStateGuard`. On
/// other threads the meter sees neither allocations nor frees; a block freed there counts as live
/// until its address is allocated again under the meter. On an accelerator the meter may miss the
/// frees of gradients that grad() returned, and of memory left by a backward that threw, because
/// autograd's thread drops its reference after it has reset its thread-local state. Any thread may
/// query.
///
/// Nesting: meters nest, and each sees every report. Destroy a meter on the thread that made it,
/// innermost first. A meter that is destroyed out of order stops counting at once, but remains the
/// thread's installed listener until the next meter is destroyed.
///
/// Errors: the constructor throws c10::Error if a torch profiler runs on this thread. Starting a
/// profiler while a meter lives fails with torch's "Profiler is already enabled", because
/// allocators report to a single listener of each thread.
class REMAT_API MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter(MemoryMeter&&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  MemoryMeter& operator=(MemoryMeter&&) = delete;

  /// Bytes in live blocks of the meter.
  int64_t current_bytes(c10::Device device = c10::kCPU) const;

  /// Largest current_bytes() since construction or reset_peak().
  int64_t peak_bytes(c10::Device device = c10::kCPU) const;

  /// Resets the peak of every device to its current bytes.
  void reset_peak();

  /// Stops counting; the counts remain available. Call it on the constructing thread.
  void stop();

 private:
  std::shared_ptr<detail::MeterState> state_;
};

}  // namespace remat
