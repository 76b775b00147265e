// SPDX-License-Identifier: BSD-3-Clause

// Policies of the segments of a cut region.
#pragma once

#include <remat/policy/policy.h>
#include <remat/tape/export.h>

namespace remat {

class OpCall;
class RegionPolicy;

/// The part of a region's scope that knows which segment an op belongs to. Only on the scope's
/// thread.
class REMAT_API SegmentPolicies {
 public:
  SegmentPolicies() = default;
  SegmentPolicies(const SegmentPolicies&) = delete;
  SegmentPolicies& operator=(const SegmentPolicies&) = delete;
  virtual ~SegmentPolicies() = default;

  /// An op is about to run. Returns the policy of its segment; null if it has none.
  virtual const RegionPolicy* enter() = 0;

  /// A rule gives SAVE or OFFLOAD to the next leaf op.
  virtual void save_next(Policy policy) = 0;

  /// A rule gives SAVE or OFFLOAD to a composite op that has just run.
  virtual void save_results(const OpCall& call, Policy policy) = 0;
};

}  // namespace remat
