// SPDX-License-Identifier: BSD-3-Clause

// The scope of a replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/engine/region.h>
#include <remat/engine/region_body.h>
#include <remat/engine/region_run.h>
#include <remat/engine/scope.h>

#include "replay_backwards.h"
#include "replay_calls.h"
#include "replay_comparison.h"
#include "replay_memory.h"
#include "replay_ops.h"
#include "replay_products.h"
#include "replay_progress.h"
#include "tensor_hooks.h"

namespace remat {

/// The inputs of a replay.
struct ReplayParts {
  const Region& region;
  const RegionBody& body;  ///< The function to run.
  ReplayedSlots& slots;
  ReplayMemory& memory;
  ReplayProducts& products;
  const TensorHooks& hooks;
  const StateHooks& state_hooks;
};

/// Combines the parts of a replay in one scope.
class ReplayScope final : public Scope, RegionRun {
 public:
  explicit ReplayScope(const ReplayParts& parts);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region& region() const override { return region_; }
  uint64_t replay_id() const override { return id_; }
  TraceScope trace_scope() const override { return progress_.trace_scope(); }
  NamedCalls& named_calls() override { return calls_; }
  std::any capture_context() override { return {}; }

  const ReplayProgress& progress() const { return progress_; }

  /// Call it after the function has returned. Raises a mismatch that the function caught, or an
  /// error for calls and slots that it did not reach. Adds both runs' ops if sites are recorded.
  void check_complete() const;

 private:
  class Hook;

  bool allows_tapes() const override { return true; }  // decide_tape() has the last word.
  bool decide_tape(bool wanted) override;
  void check_reached() const;

  const Region& region_;
  const uint64_t id_;
  ReplayComparison comparison_;
  ReplayProgress progress_;
  ReplayOps ops_;
  ReplayBackwards backwards_;
  ReplayCalls calls_;
  size_t inner_regions_ = 0;
};

}  // namespace remat
