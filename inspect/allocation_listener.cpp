// SPDX-License-Identifier: BSD-3-Clause

// Installs the listener in the thread's debug info and removes it.
#include <remat/inspect/allocation_listener.h>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <remat/engine/torch_compat.h>

namespace remat {
namespace {

namespace profiler = torch::profiler::impl;
using c10::ThreadLocalDebugInfo;

c10::DebugInfoKind reporting_slot() {
  return c10::DebugInfoKind::PROFILER_STATE;
}

c10::MemoryReportingInfoBase* current_listener() {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-static-cast-downcast): the same cast as in
  // c10::reportMemoryUsageToProfiler().
  return static_cast<c10::MemoryReportingInfoBase*>(ThreadLocalDebugInfo::get(reporting_slot()));
}

}  // namespace

AllocationListener::AllocationListener()
    : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled)),
      outer_info_((pop_stopped(), ThreadLocalDebugInfo::current())),
      outer_(current_listener()) {}

bool AllocationListener::is_listening() {
  pop_stopped();
  return dynamic_cast<AllocationListener*>(ThreadLocalDebugInfo::get(reporting_slot())) != nullptr;
}

bool AllocationListener::is_profiled() {
  auto* outer = profiler_of_thread<profiler::ProfilerStateBase>();
  return outer != nullptr && outer->profilerType() != profiler::ActiveProfilerType::NONE;
}

void AllocationListener::check_can_start(const char* who) {
  TORCH_CHECK(!is_profiled(), "[", who,
              "] construction: expected no torch profiler on this thread, got a running one. "
              "Stop the profiler before metering, or read the bytes from its own memory events "
              "(profile_memory).");
}

void AllocationListener::start(const std::shared_ptr<AllocationListener>& listener,
                               const char* who) {
  check_can_start(who);
  ThreadLocalDebugInfo::_push(reporting_slot(), listener);
}

void AllocationListener::stop() {
  stopped_ = true;
  pop_stopped();
}

void AllocationListener::pop_stopped() {
  for (;;) {
    const auto* top =
        dynamic_cast<AllocationListener*>(ThreadLocalDebugInfo::get(reporting_slot()));
    if (top == nullptr || !top->stopped_) return;
    try {
      ThreadLocalDebugInfo::_pop(reporting_slot());
    } catch (const c10::Error&) {
      return;  // Debug info of another kind was pushed later, and its owner will pop it.
    }
  }
}

bool AllocationListener::outer_listens() const {
  return outer_ != nullptr && outer_->memoryProfilingEnabled();
}

void AllocationListener::reportMemoryUsage(void* ptr, int64_t alloc_size, size_t total_allocated,
                                           size_t total_reserved, c10::Device device) {
  if (!stopped_) on_report(ptr, alloc_size, device);
  if (outer_listens())
    outer_->reportMemoryUsage(ptr, alloc_size, total_allocated, total_reserved, device);
}

void AllocationListener::reportOutOfMemory(int64_t alloc_size, size_t total_allocated,
                                           size_t total_reserved, c10::Device device) {
  if (outer_listens())
    outer_->reportOutOfMemory(alloc_size, total_allocated, total_reserved, device);
}

}  // namespace remat
