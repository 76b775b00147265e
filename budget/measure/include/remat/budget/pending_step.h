// SPDX-License-Identifier: BSD-3-Clause

// This thread's step that is being measured, from its forward until the next step begins.
#pragma once

#include <memory>
#include <utility>

#include <remat/budget/step_log.h>
#include <remat/budget/step_recording.h>
#include <remat/engine/export.h>

namespace remat {

/// A recording that outlives the call that began it. A thread has at most one, and ends it at the
/// next step or at thread exit. No recording begins or ends while a backward runs on its thread,
/// because the log would have nodes without an end, and LibTorch restores callbacks when a node
/// ends. So in a backward a recording is only abandoned: it loses its owner, and the next begin()
/// or cancel() outside of a backward ends it.
class REMAT_API PendingStep {
 public:
  /// The calling thread's pending step, if any.
  static PendingStep& here();

  /// Begins the recording of a step of `subject` for `owner`. If `subject` is not known yet, pass
  /// null and call set_subject() later. Returns null if another step of this thread or of the
  /// process is being measured, if a torch profiler runs, or in_backward().
  StepRecording* begin(const std::shared_ptr<const void>& owner, std::shared_ptr<void> subject);

  void set_subject(std::shared_ptr<void> subject) { subject_ = std::move(subject); }

  /// Ends the forward. The step ends when the next one begins.
  void end_forward();

  /// Ends the pending recording, if there is one, without a log. In a backward, abandons it.
  void cancel();

  /// True if a backward runs on this thread.
  static bool in_backward();
  /// Makes take() return null for the pending recording if the recording belongs to `owner`.
  /// Returns true in that case.
  bool spoil(const void* owner);

  /// Like cancel(), but does nothing during the forward. For code that needs LibTorch's memory
  /// callback on this thread, of which there can be only one.
  void give_up();

  /// If the pending recording belongs to `owner`, ends it, sets `log` and returns its subject;
  /// otherwise returns null. In a backward, abandons the recording and returns null.
  std::shared_ptr<void> take(const void* owner, StepLog& log);

  /// Counts a step of `owner`, if the pending recording belongs to another owner. Cancels the
  /// recording after several such steps.
  void wait_for_others(const void* owner);

 private:
  bool is_of(const void* owner) const { return recording_ && owner_.lock().get() == owner; }

  std::weak_ptr<const void> owner_;
  std::shared_ptr<void> subject_;
  std::unique_ptr<StepRecording> recording_;
  int waiting_ = 0;
  bool is_forward_over_ = false;
  bool is_spoiled_ = false;
};

}  // namespace remat
