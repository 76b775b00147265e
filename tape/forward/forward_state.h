// SPDX-License-Identifier: BSD-3-Clause

// What the parts of a region's forward share.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include <remat/tape/call_settings.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>
#include <remat/tape/storage_table.h>

#include "saved_memory.h"
#include "tape_recorder.h"

namespace remat {

/// Lives as long as the region's scope. On its thread only.
struct ForwardState {
  const Scope& scope;
  const std::shared_ptr<Region> region;
  const CallSettings settings;  ///< Of its named calls.

  /// The backward that the region was begun in.
  const int graph_task = torch::autograd::get_current_graph_task_id();

  StorageTable storages{};                   ///< Where memory comes from.
  std::unique_ptr<SavedMemory> saved{};      ///< In slots; null if ops are not seen.
  std::unique_ptr<TapeRecorder> recorder{};  ///< Null without a tape.
  const OpInfo* op = nullptr;                ///< The one that runs.
  bool is_saving = false;                    ///< In a SAVE call.
  bool has_tangents = false;                 ///< The function has made tensors with a tangent.
  size_t written_down = 0;                   ///< Ops and named calls.
  /// How many slots there were when the op began that a tensor of a Python class handles; kNoOp if
  /// none does.
  size_t handled_slot = kNoOp;
  static constexpr size_t kNoOp = ~size_t{0};

  /// The first slot that may hold what is computed now: of an op that is handled some may be there,
  /// of what it writes.
  size_t next_slot() const { return std::min(region->slots().size(), handled_slot); }

  /// True if what runs now is the region's function, not a backward inside it.
  bool is_own_code() const { return torch::autograd::get_current_graph_task_id() == graph_task; }

  /// True if ops and named calls are written down.
  bool logs() const {
    return region->intercept() && !region->ops().broken_off() &&
           region->determinism() != Determinism::kNone && is_own_code();
  }

  /// One more op or named call has been written down.
  void count_written_down() {
    ++written_down;
    if (region->op_sites()) region->op_sites()->add();
  }

  /// The region that slots are added to: if the tape is cut, that of the open segment.
  const std::shared_ptr<Region>& slot_region() const {
    const TapeCutter* const cutter = recorder ? recorder->cutter() : nullptr;
    return cutter ? cutter->region() : region;
  }
};

}  // namespace remat
