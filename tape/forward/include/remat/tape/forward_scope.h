// SPDX-License-Identifier: BSD-3-Clause

// The scope of a region's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <any>
#include <memory>

#include <remat/tape/call_settings.h>
#include <remat/tape/export.h>
#include <remat/tape/nested_tapes.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>
#include <remat/tape/tape_trust.h>

namespace remat {

class Tape;
class TapeReplayer;
struct Cuts;

/// Drops what autograd saves and leaves a slot instead, and writes down what its ops touch.
class REMAT_API ForwardScope final : public Scope, NestedTapes {
 public:
  /// `inputs`: the region's tensor arguments. Ops are seen if the region asks for it. `settings`:
  /// for its named calls.
  ForwardScope(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs,
               CallSettings settings = {});
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope() override;

  /// Its ops are recorded on `tape`, with hashes of what those save that are not `trusted`; if
  /// `strict`, what a tape cannot replay raises. Once, before the first op.
  void record(Tape& tape, TrustedOps trusted, bool strict);

  /// The tape that is recorded is cut; `whole` replays it. Once, after record().
  void cut(const Cuts& cuts, std::shared_ptr<TapeReplayer> whole);

  /// The function has returned.
  void finish();

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region* forward_region() const override;
  TraceScope trace_scope() const override;
  NamedCalls* named_calls() override;
  std::any capture_context() override { return {}; }  // an outer region's slots take what is kept

 private:
  class SlotHook;
  struct State;

  bool are_allowed() const override;
  bool decide(bool wanted) override;

  std::unique_ptr<State> state_;
};

}  // namespace remat
