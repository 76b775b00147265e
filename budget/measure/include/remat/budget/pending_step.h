// SPDX-License-Identifier: BSD-3-Clause

// The step of this thread that is being measured: from its forward until the next one begins.
#pragma once

#include <memory>

#include <remat/budget/step_log.h>
#include <remat/budget/step_recording.h>
#include <remat/tape/export.h>

namespace remat {

/// A recording that outlives the call that began it. At most one on a thread, which ends it: by the
/// next step, or when the thread ends. Of this thread:
class REMAT_API PendingStep {
 public:
  /// Begins one for a step of `subject`, by `owner`. Null if somebody else measures, or a torch
  /// profiler runs.
  static StepRecording* begin(const std::shared_ptr<const void>& owner,
                              std::shared_ptr<void> subject);

  /// The forward has ended: the step is whole when the next one begins.
  static void end_forward();

  static void cancel();

  /// The same, but not in the middle of the forward: for who wants the thread's place that hears of
  /// memory.
  static void give_up();

  /// Ends the one that is pending and gives its log, if the owner has one; else null.
  static std::shared_ptr<void> take(const void* owner, StepLog& log);

  /// Ends one of another owner, who has not come back for a while.
  static void wait_for_others(const void* owner);
};

}  // namespace remat
