// SPDX-License-Identifier: BSD-3-Clause

// A listener for the memory that a thread allocates and frees, as c10's allocators report it.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/engine/export.h>

namespace c10 {
struct MemoryReportingInfoBase;
}  // namespace c10

namespace remat {

/// Receives the allocations of the thread that starts it and of the backward passes that this
/// thread begins, and passes them on to the listener that was installed before. It is installed as
/// the thread's debug info of kind PROFILER_STATE. Torch casts any such object to
/// ProfilerStateBase, so this class derives from it, with a config by which nothing is profiled.
class REMAT_API AllocationListener : public torch::profiler::impl::ProfilerStateBase {
 public:
  AllocationListener();

  /// Installs `listener` until stop(). Throws RuntimeError if a torch profiler runs, because the
  /// profiler would take the listener for its own state. The message names `who`.
  static void start(const std::shared_ptr<AllocationListener>& listener, const char* who);

  /// Throws if start() would.
  static void check_can_start(const char* who);

  /// True if a listener that has not been stopped is installed on this thread, so that a torch
  /// profiler cannot start.
  static bool is_listening();

  /// True if a torch profiler runs on this thread.
  static bool is_profiled();

  /// Ends the reports. Call it on the thread of start(); listeners may end in any order.
  void stop();

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* ptr, int64_t alloc_size, size_t total_allocated,
                         size_t total_reserved, c10::Device device) override;
  void reportOutOfMemory(int64_t alloc_size, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;

 protected:
  /// Called for each allocation (`bytes` > 0) and free (`bytes` <= 0) at `address`. The size of a
  /// free cannot be trusted (see Note [A table of live blocks]). Called on the starting thread and
  /// on each thread that runs its backward passes.
  virtual void on_report(void* address, int64_t bytes, c10::Device device) = 0;

 private:
  static void pop_stopped();
  bool outer_listens() const;

  // Keeps outer_ alive, because autograd's threads may hold this object when the outer one has
  // ended.
  const std::shared_ptr<c10::ThreadLocalDebugInfo> outer_info_;
  c10::MemoryReportingInfoBase* const outer_;
  std::atomic<bool> stopped_{false};
};

}  // namespace remat
