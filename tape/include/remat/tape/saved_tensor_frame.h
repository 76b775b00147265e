// SPDX-License-Identifier: BSD-3-Clause

// The thread's stack of scopes that decide what becomes of a tensor autograd saves.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <memory>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

class Region;
using EdgeList = std::vector<torch::autograd::Edge>;

/// One scope of the thread's stack: a region's forward, a replay, or a pair of user hooks. Pushed
/// when made, popped when destroyed, on the same thread. New threads and forked children begin with
/// an empty stack.
class REMAT_API SavedTensorFrame {
 public:
  SavedTensorFrame(const SavedTensorFrame&) = delete;
  SavedTensorFrame& operator=(const SavedTensorFrame&) = delete;
  virtual ~SavedTensorFrame();

  /// Hooks for the tensor that autograd is about to save; null keeps the tensor itself.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

  /// The region that this scope replays, null for every other kind.
  virtual const Region* replayed_region() const { return nullptr; }

  /// A backward that accumulates into leaves is about to run from `roots` inside this scope.
  virtual void before_accumulate(const EdgeList& roots);

  /// A backward inside this scope has ended.
  virtual void after_backward();

  /// The innermost scope of this thread, null if there is none.
  static SavedTensorFrame* current();

  SavedTensorFrame* previous() const { return previous_; }

  /// True if this scope belongs to a replay: it is one, or was opened inside one.
  bool in_replay() const { return in_replay_; }

  /// Depth of PyTorch's own (Python) stack of hooks when this scope began: a deeper one is nearer
  /// to the tensor.
  size_t python_hooks_depth() const { return python_hooks_depth_; }

 protected:
  enum class Phase { kForward, kReplay };
  explicit SavedTensorFrame(Phase phase = Phase::kForward);

 private:
  SavedTensorFrame* previous_;
  size_t python_hooks_depth_;
  bool in_replay_;
};

/// Hides all scopes of this thread while alive: user callbacks run as if outside every region.
class REMAT_API SuspendFrames {
 public:
  SuspendFrames();
  SuspendFrames(const SuspendFrames&) = delete;
  SuspendFrames& operator=(const SuspendFrames&) = delete;
  ~SuspendFrames();

 private:
  SavedTensorFrame* hidden_;
};

/// True while this thread runs a region's function again, before backward.
REMAT_API bool is_recomputing();

}  // namespace remat
