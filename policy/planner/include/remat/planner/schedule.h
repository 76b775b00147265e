// SPDX-License-Identifier: BSD-3-Clause

// A plan in numbers: the policy of every region and the groups around them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/planner/chain_model.h>
#include <remat/planner/sequence_solver.h>

namespace remat::detail {

/// Regions that run as one, mostly one.
struct ScheduledRegion {
  size_t first = 0;
  size_t count = 1;
  int type = 0;
  OpSet rerun;
};

/// Regions first .. next - 1 run forward-only, then the part from `next` on, then these from
/// x_first.
struct ScheduledGroup {
  size_t first = 0;
  size_t next = 0;
};

struct Schedule {
  std::vector<ScheduledRegion> regions;  ///< They cover the chain in order.
  std::vector<ScheduledGroup> groups;    ///< Outer ones before inner ones.
};

/// What happens in order when a schedule runs. Forwards and backwards name an index of
/// Schedule::regions.
struct ScheduleEvent {
  enum class Kind : uint8_t { kForwardOnly, kForward, kBackward, kRelease };

  Kind kind = Kind::kForward;
  size_t index = 0;   ///< kForwardOnly: a position in the chain; kRelease: the chain tensor x_index
  bool first = true;  ///< kForwardOnly: first of its group, so x_index stays
};

/// @throws std::invalid_argument, text without a prefix, if groups cross, split a merged region or
/// leave the chain.
std::vector<ScheduleEvent> events_of(const Schedule& schedule, size_t length);

/// The schedule of least time within `bytes` beside x_0, which must be enough for one. Of equals it
/// takes options before merged regions before groups, then the fewest kept bytes, choice by choice:
/// that is not always the fewest groups.
Schedule extract_schedule(const SequenceSolver& solver, int64_t bytes);

}  // namespace remat::detail
