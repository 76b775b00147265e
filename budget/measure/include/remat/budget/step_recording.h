// SPDX-License-Identifier: BSD-3-Clause

// Writing a StepLog while a step runs.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/step_log.h>
#include <remat/tape/export.h>

namespace remat {

class StepListener;
class StepUndo;

/// Writes down what the thread does while it lives, and the backwards that it begins: ops of its
/// regions, nodes, replays from tapes, and the memory that comes and goes meanwhile. One at a time
/// in the process. To be made, asked and destroyed on one thread.
class REMAT_API StepRecording {
 public:
  /// `undoes_writes`: when it dies, tensors that ops have written are again what they were, if they
  /// are older than the recording, and so are the default generators. The graph of the step is to
  /// be gone by then. Throws RuntimeError if another one lives, or a torch profiler runs on this
  /// thread.
  explicit StepRecording(bool undoes_writes = false);

  /// Null where the constructor throws.
  static std::unique_ptr<StepRecording> try_make(bool undoes_writes = false);

  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;
  ~StepRecording();

  /// Ops belong to this module or named call from now on; "" for none.
  void enter(const std::string& place);

  /// What ops have written stays: the function has thrown, as it would have without us.
  void keep_writes();

  /// The forward has ended.
  void end_forward();

  /// The step has ended: what was written down. Once.
  StepLog finish();

 private:
  class Ops;
  std::shared_ptr<StepListener> listener_;
  std::unique_ptr<StepUndo> undo_;
  std::shared_ptr<Ops> ops_;
};

}  // namespace remat
