// SPDX-License-Identifier: BSD-3-Clause

// State outside a region that its replay must find as the forward found it.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <memory>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// State that a region reads or changes and that is no tensor argument: counters, statistics, a
/// generator of the user's.
///
/// The forward calls snapshot() at region entry and after each SAVE call. Each replay calls
/// snapshot() to remember the present, restore() with the entry state, restore() with the state
/// after a SAVE call where it leaves that call out, and restore() with the present when it has
/// ended, by an exception too. Both functions run without any region or saved-tensor hook active,
/// on the thread that runs the forward or the replay; replays of several threads may call them at
/// once. An exception from either passes through checkpoint() or backward().
class REMAT_API StateHook {
 public:
  StateHook() = default;
  StateHook(const StateHook&) = delete;
  StateHook& operator=(const StateHook&) = delete;
  virtual ~StateHook() = default;

  virtual std::any snapshot() = 0;
  virtual void restore(const std::any& state) = 0;
};

/// A hook that keeps the values of `buffers` (BatchNorm statistics, counters) as after one forward:
/// what a replay writes into them is undone. Holds the tensors, and a copy of their data per live
/// region. Throws ValueError if one is undefined or requires grad.
REMAT_API std::shared_ptr<StateHook> buffer_hook(std::vector<at::Tensor> buffers);

}  // namespace remat
