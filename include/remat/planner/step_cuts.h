// SPDX-License-Identifier: BSD-3-Clause

// Cuts of a step with the values they keep, and the simulation of their cost.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/planner/step_profile.h>
#include <remat/policy/export.h>
#include <remat/policy/offload_terms.h>
#include <remat/policy/policy.h>

namespace remat {

struct KeptResult {
  int32_t record = 0;
  int32_t result = 0;  ///< Index into StepRecord::makes, or makes.size() + index into writes
  Policy policy = Policy::kSave;  ///< kSave or kOffload
  bool operator==(const KeptResult&) const = default;
};

/// The cuts that a region runs with. A value crosses a cut, or is saved, only if it is in `keep`.
struct REMAT_API StepCuts {
  std::vector<int32_t> positions;  ///< Segment i ends before record positions[i]
  /// Groups of two or more segments [first, second). Two groups are nested or disjoint.
  std::vector<std::pair<int32_t, int32_t>> groups;
  std::vector<KeptResult> keep;

  /// @throws std::invalid_argument `[memory plan] source: place: expected ..., got .... What to
  /// do.`
  void validate(const StepProfile& profile, const std::string& source = "cuts") const;
};

enum class StepPhase : uint8_t { kForward, kReplay, kNode };

/// The moment of a peak.
struct StepMoment {
  StepPhase phase = StepPhase::kForward;
  int32_t unit = -1;    ///< In a replay: the segment's number, or the number of segments + the
                        ///< index of the group in StepCuts::groups
  int32_t record = -1;  ///< In the forward or a replay: the record; the number of records means
                        ///< after the forward
  int32_t node = -1;    ///< In backward: the node that runs, or runs next
};

/// A segment or group that is in no group, with the backward of its records.
struct TopUnit {
  int32_t first_segment = 0;
  int32_t end_segment = 0;
  int64_t peak_bytes = 0;
};

/// The result of an event-by-event simulation of a step with cuts.
struct StepSimulation {
  int64_t peak_bytes = 0;
  StepMoment peak;
  /// Bytes of the peak that no plan can avoid, because backward needs them for gradients and
  /// workspaces, or because they are alive even in a forward that keeps nothing.
  int64_t peak_fixed_bytes = 0;
  int64_t forward_peak_bytes = 0;
  /// Bytes kept when the forward has ended, without those that the program itself holds.
  int64_t kept_bytes = 0;
  double rerun_us = 0;
  int64_t offloaded_bytes = 0;  ///< Bytes of storages that leave the device
  double waited_us = 0;         ///< Time spent waiting for copies
  std::vector<int32_t> runs;    ///< For each record, its number of recomputations
  int32_t replays = 0;          ///< Number of units that are replayed
  std::vector<TopUnit> top_units;
};

/// @throws std::logic_error if a replay would need a value from outside of its unit that the cuts
/// do not keep.
/// @throws std::invalid_argument as StepCuts::validate does, and StepProfile::validate.
///
/// Simulates a step with cuts. Peaks with OFFLOAD hold for any speed of the copies: see Note [Peaks
/// with OFFLOAD] in planner/step/offload_moves.h. Without `offload`, OFFLOAD counts as SAVE.
REMAT_API StepSimulation simulate_step(const StepProfile& profile, const StepCuts& cuts,
                                       const OffloadTerms& offload = {});

/// The peak in bytes of the step without remat, where every saved tensor stays until its node has
/// run.
/// @throws std::invalid_argument as StepProfile::validate.
REMAT_API int64_t plain_peak_bytes(const StepProfile& profile);

}  // namespace remat
