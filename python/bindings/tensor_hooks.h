// SPDX-License-Identifier: BSD-3-Clause

// Python's hooks on tensors, in replays.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <remat/engine/region_body.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <vector>

namespace remat::python {

/// Note [Handles of hooks]: a region's function may store the handle of a hook outside the region
/// (self.handle = ...) to remove the hook later. A replay stores a new handle in its place, while
/// TensorHookDicts removes the replay's hook again. So the new handle must remove the forward's
/// hook. A handle finds its hook by an id, which is the hook's key in a dict. Therefore the replay
/// reuses the forward's ids.

/// The ids of the hook handles that a function's forward makes. Construct and use under the GIL.
class HookHandleIds {
 public:
  HookHandleIds();

  /// Call when the forward has run. A replay reuses the ids only if the forward made handles, and
  /// its SAVE calls made none.
  void finish_forward();

  /// The id of the next handle.
  static int64_t next();

  /// Notes that a SAVE call, which no replay runs, made handles on this thread.
  static void note_in_forward_only();

 private:
  friend class HookHandleIdsAgain;

  int64_t first_;
  uint64_t in_forward_only_;
  bool needed_ = true;
};

/// While alive, gives the handles of a replay the ids that they had in the forward. Use under the
/// GIL.
class HookHandleIdsAgain {
 public:
  explicit HookHandleIdsAgain(const HookHandleIds& forward);
  HookHandleIdsAgain(const HookHandleIdsAgain&) = delete;
  HookHandleIdsAgain& operator=(const HookHandleIdsAgain&) = delete;
  ~HookHandleIdsAgain();

 private:
  int64_t present_ = -1;  // negative: nothing to restore
};

/// Lets count_hooks() count the hooks in a dict one by one. Call once.
void count_hooks_in_dicts();

/// Its destructor restores the hooks that the tensors had at construction. torch keeps a tensor's
/// Python hooks in two dicts, each of which LibTorch sees as one hook. Construct under the GIL.
class TensorHookDicts final : public KeptHooks {
 public:
  explicit TensorHookDicts(c10::ArrayRef<at::Tensor> tensors);
  ~TensorHookDicts() override;

  void append_changed(std::vector<at::Tensor>& changed) const override;
  bool lost() const override;

 private:
  struct [[gnu::visibility("hidden")]] Kept {
    at::Tensor tensor;
    pybind11::object gradient;     // a copy of the dict of gradient hooks; null if there was none
    pybind11::object accumulated;  // a copy of the dict of post-accumulate hooks, or null
  };

  /// Calls `visit(hooks, before)` with each dict of the tensor and its copy. Either may be null.
  template <class Visit>
  static void visit_dicts(const Kept& kept, Visit&& visit);

  std::vector<Kept> kept_;
};

}  // namespace remat::python
