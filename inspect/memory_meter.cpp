// SPDX-License-Identifier: BSD-3-Clause

// The meter's counters, and their place in the thread's debug info, where c10's allocators report.
#include <remat/inspect/memory_meter.h>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace remat {

namespace {

namespace profiler = torch::profiler::impl;
using c10::ThreadLocalDebugInfo;

constexpr auto kReportingSlot = c10::DebugInfoKind::PROFILER_STATE;

c10::MemoryReportingInfoBase* current_listener() {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-static-cast-downcast): as
  // c10::reportMemoryUsageToProfiler.
  return static_cast<c10::MemoryReportingInfoBase*>(ThreadLocalDebugInfo::get(kReportingSlot));
}

}  // namespace

namespace detail {

// Note [A table of live blocks]
// The size in a free report is no base for exact counts. c10 keeps one table of sizes for the
// process and updates it only where a meter or profiler is on: a block freed elsewhere leaves its
// entry behind, and when the allocator hands out the same address later, a meter may be told of the
// free with the old size, or of a free without its allocation. So each meter remembers its own
// blocks: an unknown address is not its own, a known one that comes again was freed out of sight.
class BlockTable {
 public:
  void add(void* address, int64_t bytes) {
    remove(address);
    live_.emplace(address, bytes);
    current_bytes_ += bytes;
    allocated_bytes_ += bytes;
    ++allocation_count_;
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  }

  void remove(void* address) {
    const auto block = live_.find(address);
    if (block == live_.end()) {
      return;
    }
    current_bytes_ -= block->second;
    live_.erase(block);
  }

  void reset_peak() { peak_bytes_ = current_bytes_; }
  int64_t current_bytes() const { return current_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t allocation_count() const { return allocation_count_; }

 private:
  std::unordered_map<void*, int64_t> live_;  // See Note [A table of live blocks].
  int64_t current_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t allocated_bytes_ = 0;
  int64_t allocation_count_ = 0;
};

// Torch takes whatever is in the slot for a ProfilerStateBase, so it must be one; its config says
// that nothing is profiled.
class MeterState final : public profiler::ProfilerStateBase {
 public:
  MeterState()
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled)),
        outer_info_(ThreadLocalDebugInfo::current()),
        outer_(current_listener()) {}

  profiler::ActiveProfilerType profilerType() override {
    return profiler::ActiveProfilerType::NONE;
  }

  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* ptr, int64_t alloc_size, size_t total_allocated,
                         size_t total_reserved, c10::Device device) override {
    count(ptr, alloc_size, device.type());
    if (outer_listens()) {
      outer_->reportMemoryUsage(ptr, alloc_size, total_allocated, total_reserved, device);
    }
  }

  void reportOutOfMemory(int64_t alloc_size, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override {
    if (outer_listens()) {
      outer_->reportOutOfMemory(alloc_size, total_allocated, total_reserved, device);
    }
  }

  int64_t read(int64_t (BlockTable::*counter)() const, c10::DeviceType device_type) const {
    const std::lock_guard lock(mutex_);
    return (blocks_.at(static_cast<size_t>(device_type)).*counter)();
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    for (BlockTable& blocks : blocks_) {
      blocks.reset_peak();
    }
  }

  void retire() {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    blocks_ = {};
  }

  bool retired() const {
    const std::lock_guard lock(mutex_);
    return retired_;
  }

 private:
  void count(void* ptr, int64_t alloc_size, c10::DeviceType device_type) {
    const std::lock_guard lock(mutex_);
    if (retired_) {
      return;
    }
    BlockTable& blocks = blocks_.at(static_cast<size_t>(device_type));
    if (alloc_size > 0) {
      blocks.add(ptr, alloc_size);
    } else {
      blocks.remove(ptr);
    }
  }

  bool outer_listens() const { return outer_ != nullptr && outer_->memoryProfilingEnabled(); }

  // Keeps outer_ alive: autograd's threads may hold this state longer than the outer scope lasts.
  const std::shared_ptr<ThreadLocalDebugInfo> outer_info_;
  c10::MemoryReportingInfoBase* const outer_;
  mutable std::mutex mutex_;
  std::array<BlockTable, c10::COMPILE_TIME_MAX_DEVICE_TYPES> blocks_;
  bool retired_ = false;
};

}  // namespace detail

namespace {

void pop_retired_meters() {
  for (;;) {
    const auto* top = dynamic_cast<detail::MeterState*>(ThreadLocalDebugInfo::get(kReportingSlot));
    if (top == nullptr || !top->retired()) {
      return;
    }
    try {
      ThreadLocalDebugInfo::_pop(kReportingSlot);
    } catch (const c10::Error&) {
      return;  // Debug info of another kind lies above; its owner restores what was there before
               // the meter.
    }
  }
}

// A torch profiler's callbacks take what is in the slot for their own state, so nothing may be put
// above it.
void check_no_torch_profiler() {
  auto* outer = profiler::ProfilerStateBase::get(/*global=*/false);
  TORCH_CHECK(
      outer == nullptr || outer->profilerType() == profiler::ActiveProfilerType::NONE,
      "[MemoryMeter] construction: expected no torch profiler on this thread, got a running one. "
      "Stop the profiler before metering, or read the bytes from its own memory events "
      "(profile_memory).");
}

}  // namespace

MemoryMeter::MemoryMeter() {
  pop_retired_meters();
  check_no_torch_profiler();
  state_ = std::make_shared<detail::MeterState>();
  ThreadLocalDebugInfo::_push(kReportingSlot, state_);
}

MemoryMeter::~MemoryMeter() {
  state_->retire();
  pop_retired_meters();
}

int64_t MemoryMeter::current_bytes(c10::DeviceType device_type) const {
  return state_->read(&detail::BlockTable::current_bytes, device_type);
}

int64_t MemoryMeter::peak_bytes(c10::DeviceType device_type) const {
  return state_->read(&detail::BlockTable::peak_bytes, device_type);
}

int64_t MemoryMeter::allocated_bytes(c10::DeviceType device_type) const {
  return state_->read(&detail::BlockTable::allocated_bytes, device_type);
}

int64_t MemoryMeter::allocation_count(c10::DeviceType device_type) const {
  return state_->read(&detail::BlockTable::allocation_count, device_type);
}

void MemoryMeter::reset_peak() {
  state_->reset_peak();
}

}  // namespace remat
