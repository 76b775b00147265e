// SPDX-License-Identifier: BSD-3-Clause

// State shared by the parts of a region's forward.
#pragma once

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/saved_memory.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_table.h>
#include <remat/forward/call_settings.h>
#include <remat/tape/tape_recorder.h>

namespace remat {

/// Lives as long as the region's scope. Use it on the scope's thread.
struct ForwardState {
  const Scope& scope;
  const std::shared_ptr<Region> region;
  const CallSettings settings;  ///< For the region's named calls.

  /// The backward pass (graph task) in which the region was begun.
  const int graph_task = torch::autograd::get_current_graph_task_id();

  StorageTable storages{};                   ///< Origins of memory.
  std::unique_ptr<SavedMemory> saved{};      ///< Saved tensors' memory; null if no op is observed.
  std::unique_ptr<TapeRecorder> recorder{};  ///< Null without a tape.
  const OpInfo* op = nullptr;                ///< The running op.
  bool is_saving = false;                    ///< A SAVE call is running.
  bool has_tangents = false;                 ///< The function has made tensors with tangents.
  size_t written_down = 0;                   ///< Number of logged ops and named calls.
  /// Number of slots before the op that a tensor subclass handles; kNoOp if no such op is running.
  size_t handled_slot = kNoOp;
  static constexpr size_t kNoOp = ~size_t{0};

  /// Index of the first slot whose tensor may be computed from now on. A handled op may already
  /// have slots for tensors that it has yet to write.
  size_t next_slot() const { return std::min(region->slots().size(), handled_slot); }

  /// True if the running code is the region's function, not a backward inside it.
  bool is_own_code() const { return torch::autograd::get_current_graph_task_id() == graph_task; }

  /// Returns the beginning of messages about `call`.
  std::string where(const NamedCall& call) const {
    return c10::str("[checkpoint] ", region->label(), ", ", call.str());
  }

  bool logs() const {
    return region->intercept() && !region->ops().broken_off() &&
           region->determinism() != Determinism::kNone && is_own_code();
  }

  void count_written_down() {
    ++written_down;
    if (region->op_sites()) region->op_sites()->add();
  }

  /// The region that slots are added to: that of the open segment, or `region` without cuts.
  const std::shared_ptr<Region>& slot_region() const {
    const TapeCutter* const cutter = recorder ? recorder->cutter() : nullptr;
    return cutter ? cutter->region() : region;
  }
};

}  // namespace remat
