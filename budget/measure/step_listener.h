// SPDX-License-Identifier: BSD-3-Clause

// The log of a step while it is written.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/inspect/allocation_listener.h>

namespace remat {

/// Has the log, and hears of memory. Backward's threads may tell of nodes and memory at once.
class StepListener final : public AllocationListener {
 public:
  template <class Write>
  void write(Write&& write) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_done_) write(log_, next_);
  }

  /// The block that is alive at that address.
  uint32_t block_at(const void* address) const {
    const auto known = alive_.find(address);
    return known == alive_.end() ? StepLog::kNone : known->second;
  }

  bool has_block_at(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return block_at(address) != StepLog::kNone;
  }

  /// Numbers of nodes count for each thread.
  bool is_of_this_thread() const { return std::this_thread::get_id() == thread_; }

  /// The calling thread runs nodes of the step. Under the lock of write().
  void add_thread() {
    if (!runs_nodes_here()) node_threads_.push_back(std::this_thread::get_id());
  }
  bool runs_nodes_here() const {
    return is_of_this_thread() || std::find(node_threads_.begin(), node_threads_.end(),
                                            std::this_thread::get_id()) != node_threads_.end();
  }

  /// What is allocated meanwhile is not written down.
  void mute(bool muted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_muted_ = muted;
  }

  StepLog take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    log_.end = next_;
    return std::move(log_);
  }

  static std::atomic<StepListener*> current;

 private:
  // A free that was not seen, or of a block from before: see Note [A table of live blocks].
  void on_report(void* address, int64_t bytes, c10::Device /*device*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    const StepLog::Moment now = next_++;
    if (const auto known = alive_.find(address); known != alive_.end()) {
      log_.blocks[known->second].died = now;
      alive_.erase(known);
    }
    if (bytes <= 0 || is_muted_) return;
    alive_.emplace(address, static_cast<uint32_t>(log_.blocks.size()));
    log_.blocks.push_back({.bytes = bytes, .born = now});
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  StepLog log_;
  StepLog::Moment next_ = 0;
  std::vector<std::thread::id> node_threads_;  // beside thread_
  bool is_muted_ = false;
  bool is_done_ = false;
  std::unordered_map<const void*, uint32_t> alive_;  // blocks by address
};

}  // namespace remat
