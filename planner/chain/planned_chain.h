// SPDX-License-Identifier: BSD-3-Clause

// A profile in numbers for the planner, with their names; makes plans of schedules.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/planner.h>
#include <remat/planner/schedule.h>

namespace remat::detail {

struct PlannedChain {
  /// @throws std::invalid_argument as Profile::validate does
  PlannedChain(const Profile& from, OptionClass options, int exact_ops);

  /// The merge by which `count` regions from `first` on run as one; nullptr if there is none.
  const Merge* merge_at(size_t first, size_t count) const;
  /// The named ops of a region, or of `count` regions that run as one.
  std::span<const ProfileOp> ops(size_t first, size_t count = 1) const;
  /// The profile's type of a region; for a part of a cut region, the type of the whole region.
  const BlockType& original_type(size_t position) const;

  Profile original;
  Chain split;
  ChainModel model;
};

/// The plan of a schedule. A simulation gives times, peaks and the memory held at the peak; budget
/// and bounds are left out.
/// @throws std::logic_error if the simulation and the planner's arithmetic differ in the peak.
Plan to_plan(const PlannedChain& chain, const Schedule& schedule);

/// A plan's decisions for the ops that `slot` names, in numbers and a sentence.
std::vector<SlotReport> slot_reports(const PlannedChain& chain, const Plan& plan,
                                     std::string_view slot);

}  // namespace remat::detail
