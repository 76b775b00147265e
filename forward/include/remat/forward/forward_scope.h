// SPDX-License-Identifier: BSD-3-Clause

// The scope of a region's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <any>
#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/region.h>
#include <remat/engine/region_run.h>
#include <remat/engine/scope.h>
#include <remat/forward/call_settings.h>
#include <remat/tape/tape_trust.h>

namespace remat {

class Tape;
class TapeReplayer;
struct PlannedCuts;

/// Replaces tensors that autograd saves by slots, and logs which tensors the region's ops use.
class REMAT_API ForwardScope final : public Scope, RegionRun {
 public:
  /// `inputs` are the region's tensor arguments. Ops are observed if region->intercept().
  /// `settings` is for the region's named calls.
  ForwardScope(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs,
               CallSettings settings = {});
  ~ForwardScope() override;

  /// Records the region's ops on `tape`, with hashes of saved tensors unless the ops are `trusted`.
  /// If `strict`, raises at what a tape cannot replay. Call it once, before the first op.
  void record(Tape& tape, TrustedOps trusted, bool strict);

  /// Cuts the recorded tape; `whole` replays it. Call it once, after record().
  void cut(const PlannedCuts& cuts, std::shared_ptr<TapeReplayer> whole);

  /// Call it when the function has returned.
  void finish();

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region& region() const override;
  uint64_t replay_id() const override { return 0; }
  TraceScope trace_scope() const override;
  NamedCalls& named_calls() override;
  std::any capture_context() override { return {}; }  // An outer region's slots need no context.

 private:
  class SlotHook;
  struct State;

  bool allows_tapes() const override;
  bool decide_tape(bool wanted) override;

  std::unique_ptr<State> state_;
};

}  // namespace remat
