// SPDX-License-Identifier: BSD-3-Clause

// A profile in numbers for the planner, with the profile's names; makes plans of schedules.
#pragma once

#include <span>

#include <remat/planner/chain.h>
#include <remat/planner/schedule.h>

namespace remat::detail {

struct PlannedChain {
  /// @throws std::invalid_argument as Profile::validate does
  explicit PlannedChain(const Profile& from);

  /// The named ops of a region.
  std::span<const ProfileOp> ops(size_t position) const;
  /// The profile's type of a region; for a part of a cut region, the type of the whole region.
  const BlockType& original_type(size_t position) const;

  Profile original;
  Chain split;
  ChainModel model;
};

/// The plan of a schedule, with times and peaks by simulation. Budget and bounds are left out.
/// @throws std::logic_error if the simulation and the planner's arithmetic differ in the peak.
Plan to_plan(const PlannedChain& chain, const Schedule& schedule);

}  // namespace remat::detail
