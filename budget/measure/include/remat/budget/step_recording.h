// SPDX-License-Identifier: BSD-3-Clause

// Recording of a StepLog while a step runs.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/step_log.h>
#include <remat/tape/export.h>

namespace remat {

class StepListener;
class StepUndo;

/// While alive, logs what this thread and the backward passes that it begins do: ops of its
/// regions, nodes, replays from tapes, and memory that is allocated and freed meanwhile. One at a
/// time in the process. Make, use and destroy it on one thread.
class REMAT_API StepRecording {
 public:
  /// `undoes_writes`: the destructor restores tensors that are older than the recording and were
  /// written by ops, and the default generators. The step's graph must be gone by then. Throws
  /// RuntimeError if another recording is alive, or a torch profiler runs on this thread.
  explicit StepRecording(bool undoes_writes = false);

  /// As the constructor, but returns null where it throws.
  static std::unique_ptr<StepRecording> try_make(bool undoes_writes = false);

  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;
  ~StepRecording();

  /// Assigns ops from now on to this module or named call; "": none.
  void enter(const std::string& place);

  /// Ends the forward.
  void end_forward();

  /// The log so far.
  StepLog log() const;

  /// Ends the step and returns its log. Call it once.
  StepLog finish();

 private:
  class Ops;
  std::shared_ptr<StepListener> listener_;
  std::unique_ptr<StepUndo> undo_;
  std::shared_ptr<Ops> ops_;
};

}  // namespace remat
