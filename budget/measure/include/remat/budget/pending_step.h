// SPDX-License-Identifier: BSD-3-Clause

// This thread's step that is being measured, from its forward until the next step begins.
#pragma once

#include <memory>

#include <remat/budget/step_log.h>
#include <remat/budget/step_recording.h>
#include <remat/tape/export.h>

namespace remat {

/// A recording that outlives the call that began it. A thread has at most one, and ends it at the
/// next step or at thread exit. All functions concern the calling thread.
class REMAT_API PendingStep {
 public:
  /// Begins the recording of a step of `subject` for `owner`; null if the subject is not known yet.
  /// Null if something else is being
  /// measured, or if a torch profiler runs.
  static StepRecording* begin(const std::shared_ptr<const void>& owner,
                              std::shared_ptr<void> subject);

  /// Sets the subject of the step that has begun.
  static void set_subject(std::shared_ptr<void> subject);

  /// Ends the forward. The step ends when the next one begins.
  static void end_forward();

  static void cancel();

  /// As cancel(), except during the forward. For code that needs the thread's slot for memory
  /// callbacks.
  static void give_up();

  /// Ends the pending recording and returns its subject and log, if it belongs to the owner;
  /// otherwise null.
  static std::shared_ptr<void> take(const void* owner, StepLog& log);

  /// Counts a step of another owner; cancels the pending recording if its owner has not come back
  /// for several steps.
  static void wait_for_others(const void* owner);
};

}  // namespace remat
