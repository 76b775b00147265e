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
/// next step or at thread exit. No recording begins or ends while a backward runs on its thread:
/// nodes would have begun and not ended, and LibTorch restores a node's callbacks when the node
/// ends. A call that would end one there drops it instead. It ends when a later call, outside of a
/// backward, begins or cancels one.
class REMAT_API PendingStep {
 public:
  /// The calling thread's.
  static PendingStep& here();

  /// Begins the recording of a step of `subject` for `owner`; null if the subject is not known yet.
  /// Null if something else is being measured, if a torch profiler runs, or in_backward().
  StepRecording* begin(const std::shared_ptr<const void>& owner, std::shared_ptr<void> subject);

  /// Sets the subject of the step that has begun.
  void set_subject(std::shared_ptr<void> subject) { subject_ = std::move(subject); }

  /// Ends the forward. The step ends when the next one begins.
  void end_forward();

  /// Ends the pending recording, if there is one, without a log. In a backward, drops it.
  void cancel();

  /// True if a backward runs on this thread.
  static bool in_backward();
  /// Lets take() return null for the pending recording, if it belongs to the owner; returns whether
  /// it does.
  bool spoil(const void* owner);

  /// As cancel(), except during the forward. For code that needs the thread's slot for memory
  /// callbacks.
  void give_up();

  /// Ends the pending recording and returns its subject and log, if it belongs to the owner;
  /// otherwise null. In a backward, drops the recording and returns null.
  std::shared_ptr<void> take(const void* owner, StepLog& log);

  /// Counts a step of another owner; cancels the pending recording if its owner has not come back
  /// for several steps.
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
