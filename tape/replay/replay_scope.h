// SPDX-License-Identifier: BSD-3-Clause

// The scope of a replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/tape/nested_tapes.h>
#include <remat/tape/op_observer.h>
#include <remat/tape/region.h>
#include <remat/tape/region_body.h>
#include <remat/tape/scope.h>

#include "replay_backwards.h"
#include "replay_calls.h"
#include "replay_ops.h"
#include "replay_progress.h"
#include "tensor_hooks.h"

namespace remat {

/// What a replay is of, and what it works with.
struct ReplayParts {
  const Region& region;
  const RegionBody& body;  ///< What runs.
  ReplayedSlots& slots;
  ReplayOps& ops;
  const TensorHooks& hooks;
  const StateHooks& state_hooks;
};

/// Puts the parts of a replay together.
class ReplayScope final : public Scope, OpObserver, NestedTapes {
 public:
  explicit ReplayScope(const ReplayParts& parts);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region* replayed_region() const override { return &region_; }
  TraceScope trace_scope() const override { return progress_.trace_scope(); }
  uint64_t replay_id() const override { return id_; }
  NamedCalls* named_calls() override { return &calls_; }
  std::any capture_context() override { return {}; }

  const ReplayProgress& progress() const { return progress_; }

  /// Raises what went wrong although the function has returned: a mismatch that it caught, or calls
  /// and slots that it did not reach.
  void check_complete() const;

 private:
  class Hook;

  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  void adopt(const at::Tensor& tensor) override;
  at::Tensor stand_in(const at::Tensor& tensor) override;
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) override;
  void phase_was_asked() override { progress_.end_comparison(); }
  bool are_allowed() const override { return true; }  // if the forward did
  bool decide(bool wanted) override;

  const Region& region_;
  const uint64_t id_;
  ReplayOps& ops_;
  ReplayProgress progress_;
  ReplayBackwards backwards_;
  ReplayCalls calls_;
  size_t inner_regions_ = 0;
};

}  // namespace remat
