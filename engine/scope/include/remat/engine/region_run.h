// SPDX-License-Identifier: BSD-3-Clause

// Parts of a scope that know the region whose function it runs, and the region's segments.
#pragma once

#include <cstdint>

#include <remat/engine/export.h>
#include <remat/engine/trace_sink.h>
#include <remat/policy/policy.h>

namespace remat {

class NamedCalls;
class RegionPolicy;

/// The part of a scope that runs the function of a region: in the forward or in a replay. For the
/// scope's thread only.
class REMAT_API RegionRun {
 public:
  RegionRun() = default;
  RegionRun(const RegionRun&) = delete;
  RegionRun& operator=(const RegionRun&) = delete;
  virtual ~RegionRun() = default;

  virtual const Region& region() const = 0;

  /// Process-wide id of a replay; 0 for a forward.
  virtual uint64_t replay_id() const = 0;

  /// Current position in the region.
  virtual TraceScope trace_scope() const = 0;

  /// The handler of the named calls made in this scope.
  virtual NamedCalls& named_calls() = 0;

  /// True if regions that begin in this scope may be replayed from tapes: Note [Nested tapes].
  virtual bool allows_tapes() const = 0;

  /// Called when a nested region begins in this scope. `wanted`: the nested region would have a
  /// tape. Returns whether it gets one; a replay decides as the forward did.
  virtual bool decide_tape(bool wanted) = 0;

  /// Returns allows_tapes() of this thread's innermost region; true if there is none.
  static bool tapes_allowed_here();

  /// Passes `wanted` through decide_tape() of the thread's regions, the outermost first.
  static bool decide_tape_here(bool wanted);
};

/// The part of a cut region's scope that knows which segment an op belongs to. For the scope's
/// thread only.
class REMAT_API SegmentPolicies {
 public:
  SegmentPolicies() = default;
  SegmentPolicies(const SegmentPolicies&) = delete;
  SegmentPolicies& operator=(const SegmentPolicies&) = delete;
  virtual ~SegmentPolicies() = default;

  /// Called before op `next` runs. Returns the policy of the op's segment; null if it has no
  /// policy.
  virtual const RegionPolicy* enter(const OpInfo& next) = 0;

  /// A rule gives SAVE or OFFLOAD to the next leaf op.
  virtual void save_next(Policy policy) = 0;

  /// A rule gives SAVE or OFFLOAD to a composite op that has just run.
  virtual void save_results(const OpCall& call, Policy policy) = 0;
};

}  // namespace remat
