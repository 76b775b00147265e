// SPDX-License-Identifier: BSD-3-Clause

// Policies of a region that is cut.
#pragma once

#include <remat/policy/policy.h>
#include <remat/tape/export.h>

namespace remat {

class OpCall;
class RegionPolicy;

/// The part of a region's scope that knows which segment an op belongs to. On the thread of the
/// scope only.
class REMAT_API SegmentPolicies {
 public:
  SegmentPolicies() = default;
  SegmentPolicies(const SegmentPolicies&) = delete;
  SegmentPolicies& operator=(const SegmentPolicies&) = delete;
  virtual ~SegmentPolicies() = default;

  /// An op is about to run. Returns the policy of its segment; null if that has none.
  virtual const RegionPolicy* enter() = 0;

  /// A rule says SAVE or OFFLOAD of the leaf op that runs next.
  virtual void save_next(Policy policy) = 0;

  /// A rule says SAVE or OFFLOAD of a composite op that has just run.
  virtual void save_results(const OpCall& call, Policy policy) = 0;
};

}  // namespace remat
