// SPDX-License-Identifier: BSD-3-Clause

// Recording of a StepLog while a step runs.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/step_log.h>
#include <remat/engine/export.h>

namespace remat {

class StepListener;

/// While alive, logs what this thread and the backward passes that it begins do: ops of its
/// regions, nodes, replays from tapes, and memory that is allocated and freed meanwhile. Only one
/// may exist in the process. Make, use and destroy it on one thread.
class REMAT_API StepRecording {
 public:
  /// Throws RuntimeError if another recording is alive, or a torch profiler runs on this thread.
  StepRecording();

  /// Makes a recording; returns null if the constructor throws.
  static std::unique_ptr<StepRecording> try_make();

  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;
  ~StepRecording();

  /// Assigns ops from now on to the module or named call `place`; "": none.
  void enter(const std::string& place);

  void end_forward();

  /// The log so far.
  StepLog log() const;

  /// Ends the step and returns its log. Call it once.
  StepLog finish();

 private:
  class Ops;
  std::shared_ptr<StepListener> listener_;
  std::shared_ptr<Ops> ops_;
};

}  // namespace remat
