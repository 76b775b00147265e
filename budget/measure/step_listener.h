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

/// The part of a thread in the step that is measured.
///
/// Note [Threads of a step]: the forward runs on one thread. Nodes of backward run there, and for
/// tensors of accelerators on threads of autograd's engine, one for each device, several at once.
/// An engine's thread inherits whoever is told of nodes and memory from the thread that has called
/// backward, node by node, and runs nodes of other backwards between them. So what is told to the
/// whole process (replays, saved tensors) is the step's only if a node of the step runs on that
/// thread. Each thread has its own clock, and counts the nodes that it makes by itself.
struct StepThread {
  uint64_t step = 0;               ///< The step by its number(); for another one all starts anew.
  int nodes = 0;                   ///< Number of nodes that run, one inside of the other.
  uint32_t node = StepLog::kNone;  ///< The outermost of them, if it is written down.
  int replays = 0;                 ///< Number of replays that run, one inside of the other.
  size_t replay = 0;               ///< The outermost of them, by its number in the log.
};

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

  uint64_t number() const { return number_; }

  /// The thread of the forward, by at::RecordFunction's number.
  uint64_t forward_thread() const { return forward_thread_; }
  bool is_of_this_thread() const {
    return at::RecordFunction::currentThreadId() == forward_thread_;
  }

  /// The part of the calling thread in this step.
  StepThread& here() const {
    static thread_local StepThread of_thread;
    if (of_thread.step != number_) of_thread = {.step = number_};
    return of_thread;
  }

  /// To be asked under the lock of write().
  StepNodes& nodes() { return nodes_; }

  /// True where replays belong to the step.
  bool works_here() const { return is_of_this_thread() || here().nodes > 0; }

  /// An op has returned these. Not under the lock of write().
  void add_results(const c10::IValue& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    if (value.isTensor()) return mark_result(value.toTensor());
    if (!value.isTensorList()) return;
    for (const c10::IValue& item : value.toListRef()) mark_result(item.toTensor());
  }
  void mark_result(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const uint32_t block = block_at(tensor.storage().data());
    if (block != StepLog::kNone) log_.blocks[block].is_result = true;
  }

  /// True once memory of an accelerator was allocated.
  bool sees_accelerator() const { return sees_accelerator_; }

  /// What is allocated meanwhile is not written down.
  void mute(bool muted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_muted_ = muted;
  }

  StepLog take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    nodes_.finish(log_);
    log_.end = next_;
    return std::move(log_);
  }

  static std::atomic<StepListener*> current;

 private:
  // A free that was not seen, or of a block from before: see Note [A table of live blocks].
  void on_report(void* address, int64_t bytes, c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    const StepLog::Moment now = next_++;
    if (const auto known = alive_.find(address); known != alive_.end()) {
      log_.blocks[known->second].died = now;
      alive_.erase(known);
    }
    if (bytes <= 0 || is_muted_) return;
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
  StepNodes nodes_;
  StepLog::Moment next_ = 0;
  bool is_muted_ = false;
  bool is_done_ = false;
  std::atomic<bool> sees_accelerator_{false};
  std::unordered_map<const void*, uint32_t> alive_;  // blocks by address
};

}  // namespace remat
