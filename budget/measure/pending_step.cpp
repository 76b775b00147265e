// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/pending_step.h>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace remat {
namespace {

/// After this many steps of other owners, an owner that has not come back loses its recording.
constexpr int kMostWaiting = 4;

/// Thread-locals that a recording's destructor uses at thread exit must outlive it. Thread-locals
/// are destroyed in reverse order of first use, so these are used first.
bool touch_what_recordings_use() {
  c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  at::get_record_function_tls_();
  return true;
}

}  // namespace

PendingStep& PendingStep::here() {
  static thread_local const bool touched = touch_what_recordings_use();
  static_cast<void>(touched);
  static thread_local PendingStep of_thread;
  return of_thread;
}

bool PendingStep::in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool PendingStep::spoil(const void* owner) {
  is_spoiled_ = is_spoiled_ || is_of(owner);
  return is_of(owner);
}

StepRecording* PendingStep::begin(const std::shared_ptr<const void>& owner,
                                  std::shared_ptr<void> subject) {
  if (in_backward()) return nullptr;
  if (owner_.expired()) cancel();
  if (recording_) return nullptr;
  owner_ = owner;
  subject_ = std::move(subject);
  recording_ = StepRecording::try_make();
  return recording_.get();
}

void PendingStep::end_forward() {
  if (!recording_) return;
  recording_->end_forward();
  is_forward_over_ = true;
}

// In a backward the recording only loses its owner, and a later begin() ends it.
void PendingStep::cancel() {
  subject_.reset();
  owner_.reset();
  if (!in_backward()) *this = {};
}

void PendingStep::give_up() {
  if (is_forward_over_) cancel();
}

std::shared_ptr<void> PendingStep::take(const void* owner, StepLog& log) {
  if (!is_of(owner)) return nullptr;
  std::shared_ptr<void> subject = is_spoiled_ || in_backward() ? nullptr : std::move(subject_);
  if (subject) log = recording_->finish();
  cancel();
  return subject;
}

void PendingStep::wait_for_others(const void* owner) {
  if (recording_ && !is_of(owner) && ++waiting_ > kMostWaiting) cancel();
}

}  // namespace remat
