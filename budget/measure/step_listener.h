// SPDX-License-Identifier: BSD-3-Clause

// The log of a step while it is written.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <remat/budget/step_log.h>
#include <remat/inspect/allocation_listener.h>

#include "step_nodes.h"

namespace remat {

/// A thread's part in the measured step.
///
/// Note [Threads of a step]: the forward runs on one thread. Nodes of backward run there or, for
/// tensors on accelerators, on threads of autograd's engine: one per device, all at the same time.
/// For each node, a thread of the engine inherits the callbacks for nodes and memory from the
/// thread that called backward; its next node may be of another backward pass. So events that are
/// reported to the whole process (replays, saved tensors) belong to the step only if a node of the
/// step runs on that thread. Each thread has its own clock and its own sequence numbers.
struct StepThread {
  uint64_t step = 0;               ///< StepListener::number(); a new step resets all members
  int nodes = 0;                   ///< Number of nodes that run, one inside the other
  uint32_t node = StepLog::kNone;  ///< The outermost running node, if it is logged
  int replays = 0;                 ///< Number of replays that run, one inside the other
  size_t replay = 0;               ///< Index of the outermost running replay in the log
};

/// Holds the log and listens to allocations. Several threads of backward may report at once.
class StepListener final : public AllocationListener {
 public:
  template <class Write>
  void write(Write&& write) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_done_) write(log_, next_);
  }

  uint64_t number() const { return number_; }

  bool is_of_this_thread() const {
    return at::RecordFunction::currentThreadId() == forward_thread_;
  }

  StepThread& here() const {
    static thread_local StepThread of_thread;
    if (of_thread.step != number_) of_thread = {.step = number_};
    return of_thread;
  }

  /// The log of nodes. Call this under the lock of write().
  StepNodes& nodes() { return nodes_; }

  /// True if replays on this thread belong to the step.
  bool works_here() const { return is_of_this_thread() || here().nodes > 0; }

  /// Marks the blocks that an op has returned. Do not call it under the lock of write().
  void add_results(const c10::IValue& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    if (value.isTensor()) mark_result(value.toTensor());
    if (!value.isTensorList()) return;
    for (const c10::IValue& item : value.toListRef()) mark_result(item.toTensor());
  }
  /// Marks the tensor's block as a result and returns it; kNone if there is none. Call this under
  /// the lock of write().
  uint32_t mark_result(const at::Tensor& tensor) {
    const bool has_memory = tensor.defined() && tensor.has_storage();
    const auto known = has_memory ? alive_.find(tensor.storage().data()) : alive_.end();
    if (known == alive_.end()) return StepLog::kNone;
    log_.blocks[known->second].is_result = true;
    return known->second;
  }

  /// True once accelerator memory has been allocated.
  bool sees_accelerator() const { return sees_accelerator_; }

  /// The log so far.
  StepLog copy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    StepLog log = log_;
    log.end = next_;
    return log;
  }

  StepLog take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    nodes_.finish();
    log_.end = next_;
    return std::move(log_);
  }

  static std::atomic<StepListener*> current;

 private:
  // If a new block has a known address, the free of the older block was not seen. A free of an
  // unknown address is of a block from before the step: see Note [A table of live blocks].
  void on_report(void* address, int64_t bytes, c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    const StepLog::Moment now = next_++;
    if (const auto known = alive_.find(address); known != alive_.end()) {
      log_.blocks[known->second].died = now;
      alive_.erase(known);
    }
    if (bytes <= 0) return;
    alive_.emplace(address, static_cast<uint32_t>(log_.blocks.size()));
    log_.blocks.push_back(
        {.bytes = bytes, .born = now, .device = device, .in_replay = here().replays > 0});
    if (!device.is_cpu()) sees_accelerator_ = true;
  }

  static inline std::atomic<uint64_t> newest{0};

  const uint64_t number_ = ++newest;
  const uint64_t forward_thread_ = at::RecordFunction::currentThreadId();
  std::mutex mutex_;
  StepLog log_;
  StepLog::Moment next_ = 0;
  StepNodes nodes_{log_, next_, forward_thread_};
  bool is_done_ = false;
  std::atomic<bool> sees_accelerator_{false};
  std::unordered_map<const void*, uint32_t> alive_;  // blocks by address
};

}  // namespace remat
