// SPDX-License-Identifier: BSD-3-Clause

// Per-device byte counters, fed by an AllocationListener.
#include <remat/inspect/memory_meter.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include <remat/inspect/allocation_listener.h>

namespace remat {
namespace detail {

// Note [A table of live blocks]
// The size in a report of a free is unreliable. c10 keeps one table of block sizes for the process
// and updates it only on threads with a meter or profiler, so a block freed on another thread
// leaves its entry behind. When the allocator hands out the same address later, a meter may get a
// free with the old size, or a free without its allocation. So each meter has a table of its own
// blocks. A free of an address that is not in the table is ignored, and if an address in the table
// is allocated again, its old block was freed unseen.
class BlockTable {
 public:
  void add(void* address, int64_t bytes) {
    remove(address);
    live_.emplace(address, bytes);
    current_bytes += bytes;
    peak_bytes = std::max(peak_bytes, current_bytes);
  }

  void remove(void* address) {
    const auto block = live_.find(address);
    if (block == live_.end()) {
      return;
    }
    current_bytes -= block->second;
    live_.erase(block);
  }

  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;

 private:
  std::unordered_map<void*, int64_t> live_;  // See Note [A table of live blocks].
};

class MeterState final : public AllocationListener {
 public:
  int64_t read(int64_t BlockTable::*counter, c10::Device device) const {
    const std::lock_guard lock(mutex_);
    if (device.is_cpu() || !device.has_index())
      return blocks_.at(static_cast<size_t>(device.type())).*counter;
    const auto known = by_device_.find(device);
    return known == by_device_.end() ? 0 : known->second.*counter;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    for (BlockTable& blocks : blocks_) blocks.peak_bytes = blocks.current_bytes;
    for (auto& [device, blocks] : by_device_) blocks.peak_bytes = blocks.current_bytes;
  }

  /// Frees the tables, because autograd's threads may hold this state longer than the meter lives.
  void clear() {
    const std::lock_guard lock(mutex_);
    blocks_ = {};
    by_device_.clear();
  }

 private:
  void on_report(void* address, int64_t bytes, c10::Device device) override {
    const std::lock_guard lock(mutex_);
    report(blocks_.at(static_cast<size_t>(device.type())), address, bytes);
    if (!device.is_cpu()) report(by_device_[device], address, bytes);
  }

  static void report(BlockTable& blocks, void* address, int64_t bytes) {
    if (bytes > 0) {
      blocks.add(address, bytes);
    } else {
      blocks.remove(address);
    }
  }

  mutable std::mutex mutex_;
  std::array<BlockTable, c10::COMPILE_TIME_MAX_DEVICE_TYPES> blocks_;  // by device type
  std::unordered_map<c10::Device, BlockTable> by_device_;              // accelerators, by device
};

}  // namespace detail

MemoryMeter::MemoryMeter() : state_(std::make_shared<detail::MeterState>()) {
  AllocationListener::start(state_, "MemoryMeter");
}

MemoryMeter::~MemoryMeter() {
  state_->stop();
  state_->clear();
}

int64_t MemoryMeter::current_bytes(c10::Device device) const {
  return state_->read(&detail::BlockTable::current_bytes, device);
}

int64_t MemoryMeter::peak_bytes(c10::Device device) const {
  return state_->read(&detail::BlockTable::peak_bytes, device);
}

void MemoryMeter::stop() {
  state_->stop();
}

void MemoryMeter::reset_peak() {
  state_->reset_peak();
}

}  // namespace remat
