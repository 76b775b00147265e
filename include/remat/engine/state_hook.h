// SPDX-License-Identifier: BSD-3-Clause

// State outside a region that a replay must find as the forward found it.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <memory>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// State that a region reads or changes and that is not a tensor argument: counters, statistics, a
/// user's generator.
///
/// The forward calls snapshot() when the region begins and after each SAVE call. Each replay first
/// takes a snapshot, restores the state of the region's beginning, restores the state after each
/// SAVE call it skips, and finally restores its own first snapshot, even on an exception. Both
/// functions run without any region or saved-tensor hook active, on the thread of the forward or
/// the replay; replays on several threads may call them concurrently. Exceptions pass through
/// checkpoint() or backward().
class REMAT_API StateHook {
 public:
  StateHook() = default;
  StateHook(const StateHook&) = delete;
  StateHook& operator=(const StateHook&) = delete;
  virtual ~StateHook() = default;

  virtual std::any snapshot() = 0;
  virtual void restore(const std::any& state) = 0;
};

/// A hook that undoes what a replay writes into `buffers` (BatchNorm statistics, counters), so that
/// the buffers have the values of one forward. Holds the tensors, and for each live region a copy
/// of their data. Throws ValueError if a buffer is undefined or requires grad.
REMAT_API std::shared_ptr<StateHook> buffer_hook(std::vector<at::Tensor> buffers);

}  // namespace remat
