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

/// Note [Handles of hooks]: a function may store the handle of a hook outside (self.handle = ...)
/// to remove the hook later. Its replay stores another handle there, whose hook TensorHookDicts
/// removes again. A handle's id is the key of its hook in a dict; with the key that the forward's
/// handle had, the replay's handle removes the forward's hook.

/// The handle ids of a function's forward. Construct and use under the GIL.
class HookHandleIds {
 public:
  HookHandleIds();

  /// Call when the forward has run: if it made no handles, none need the same ids.
  void finish_forward();

  /// The id of the next handle.
  static int64_t next();

  /// Notes that code which runs in the forward only made handles on this thread.
  static void note_in_forward_only();

 private:
  friend class HookHandleIdsAgain;

  int64_t first_;
  uint64_t in_forward_only_;
  bool needed_ = true;
};

/// While alive, the handles of a replay get the ids that they had in the forward. Use under the
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

/// Lets remat count the hooks in a dict: see count_hooks(). Call once.
void count_hooks_in_dicts();

/// torch keeps the hooks of a tensor in two dicts, which LibTorch sees as one hook each. Construct
/// under the GIL.
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
    pybind11::object accumulated;  // likewise for register_post_accumulate_grad_hook
  };

  /// Calls `visit(hooks, before)` for both dicts of the tensor; either may be null.
  template <class Visit>
  static void visit_dicts(const Kept& kept, Visit&& visit);

  std::vector<Kept> kept_;
};

}  // namespace remat::python
