// SPDX-License-Identifier: BSD-3-Clause

// Exact bytes of tensor memory that a scope allocates, counted from c10's allocator reports.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include <remat/tape/export.h>

namespace remat {

namespace detail {
class MeterState;
}  // namespace detail

/// Counts, from construction to destruction, what c10's allocators hand out and take back. Units
/// are bytes as the allocator reports them: what was asked for on the CPU, the rounded block on
/// CUDA. A device without an index stands for all devices of its type together.
///
///     remat::MemoryMeter meter;
///     at::Tensor loss = model->forward(x);
///     int64_t resident_bytes = meter.current_bytes();
///
/// Blocks: a block belongs to the meters in whose lifetime it was allocated. Freeing a block that
/// is older than the meter changes nothing, so no count is ever negative. Memory that does not come
/// from a c10 allocator (`from_blob`, `malloc` inside a kernel) is not seen.
///
/// Threads: reports count on the thread of construction and on every thread that carries its
/// thread-local state: those of autograd, and any inside an `at::ThreadLocalStateGuard`. Elsewhere
/// neither allocations nor frees are seen; a block freed there counts as live until its address is
/// allocated again under the meter. After a backward on an accelerator that may be a gradient that
/// grad() has returned, or what a backward that threw has left: autograd's thread lets go of its
/// own reference when it has taken that state off. Queries are safe from any thread.
///
/// Nesting: meters nest, and each sees every report. Destroy a meter on the thread that made it,
/// the innermost first. A meter that is destroyed out of turn stops counting at once, and its place
/// on the thread is given up with the next meter's.
///
/// Errors: c10::Error on construction where a torch profiler runs on this thread. Starting one
/// under a meter fails with torch's "Profiler is already enabled": both need the one place where
/// allocators report.
class REMAT_API MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter(MemoryMeter&&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  MemoryMeter& operator=(MemoryMeter&&) = delete;

  /// Bytes of the meter's blocks that are live now.
  int64_t current_bytes(c10::Device device = c10::kCPU) const;

  /// Largest current_bytes() since construction or reset_peak().
  int64_t peak_bytes(c10::Device device = c10::kCPU) const;

  /// Bytes of all the meter's blocks, freed ones included.
  int64_t allocated_bytes(c10::Device device = c10::kCPU) const;

  /// Number of the meter's blocks, freed ones included.
  int64_t allocation_count(c10::Device device = c10::kCPU) const;

  /// Sets the peak of every device to what is live now.
  void reset_peak();

  /// Counts nothing more; what was counted can still be asked for. On the thread of construction.
  void stop();

 private:
  std::shared_ptr<detail::MeterState> state_;
};

}  // namespace remat
