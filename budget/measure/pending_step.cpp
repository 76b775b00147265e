// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/pending_step.h>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <utility>

namespace remat {
namespace {

/// After this many steps of other owners, an owner that has not come back loses its recording.
constexpr int kMostWaiting = 4;

struct Pending {
  std::weak_ptr<const void> owner;
  std::shared_ptr<void> subject;
  std::unique_ptr<StepRecording> recording;
  int waiting = 0;
  bool is_forward_over = false;

  bool is_of(const void* other) const { return recording && owner.lock().get() == other; }
};

/// Thread-locals that a recording's destructor uses at thread exit must outlive it. Thread-locals
/// are destroyed in reverse order of first use, so these are used first.
bool touch_what_recordings_use() {
  c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  at::get_record_function_tls_();
  return true;
}

Pending& pending() {
  static thread_local const bool touched = touch_what_recordings_use();
  static_cast<void>(touched);
  static thread_local Pending of_thread;
  return of_thread;
}

}  // namespace

StepRecording* PendingStep::begin(const std::shared_ptr<const void>& owner,
                                  std::shared_ptr<void> subject) {
  if (pending().owner.expired()) cancel();
  if (pending().recording) return nullptr;
  pending() = {owner, std::move(subject), StepRecording::try_make()};
  return pending().recording.get();
}

void PendingStep::set_subject(std::shared_ptr<void> subject) {
  pending().subject = std::move(subject);
}

void PendingStep::end_forward() {
  if (!pending().recording) return;
  pending().recording->end_forward();
  pending().is_forward_over = true;
}

void PendingStep::cancel() {
  pending() = {};
}

void PendingStep::give_up() {
  if (pending().is_forward_over) cancel();
}

std::shared_ptr<void> PendingStep::take(const void* owner, StepLog& log) {
  if (!pending().is_of(owner)) return nullptr;
  log = pending().recording->finish();
  std::shared_ptr<void> subject = std::move(pending().subject);
  cancel();
  return subject;
}

void PendingStep::wait_for_others(const void* owner) {
  Pending& now = pending();
  if (now.recording && !now.is_of(owner) && ++now.waiting > kMostWaiting) cancel();
}

}  // namespace remat
