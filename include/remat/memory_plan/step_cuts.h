// SPDX-License-Identifier: BSD-3-Clause

// Where a step is cut and what is kept of it, and what that comes to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>
#include <remat/policy/offload_terms.h>
#include <remat/policy/policy.h>

namespace remat {

struct KeptResult {
  int32_t record = 0;
  int32_t result = 0;  ///< Index into StepRecord::makes, then makes.size() + index into writes.
  Policy policy = Policy::kSave;  ///< Or kOffload.
  bool operator==(const KeptResult&) const = default;
};

/// What an engine is given. Only what `keep` names crosses a cut or is saved.
struct REMAT_API StepCuts {
  std::vector<int32_t> positions;  ///< Segment i ends before record positions[i].
  /// Segments [first, second), two or more; nested or apart.
  std::vector<std::pair<int32_t, int32_t>> groups;
  std::vector<KeptResult> keep;

  /// @throws std::invalid_argument `[memory plan] source: place: expected ..., got .... What to
  /// do.`
  void validate(const StepProfile& profile, const std::string& source = "cuts") const;
};

/// What runs again costs, besides the ops' own times.
struct ReplayCosts {
  double unit_us = 0;    ///< Per segment or group that is replayed
  double record_us = 0;  ///< Per record that runs again
};

enum class StepPhase : uint8_t { kForward, kReplay, kNode };

/// The moment of a peak.
struct StepMoment {
  StepPhase phase = StepPhase::kForward;
  int32_t unit = -1;    ///< Of a replay: segments first, then groups in the order of the cuts.
  int32_t record = -1;  ///< Of the forward or a replay; the number of records: after the forward.
  int32_t node = -1;    ///< Of backward, during or before which it is
};

/// A segment or group that is in no group, with the backward of its records.
struct TopUnit {
  int32_t first_segment = 0;
  int32_t end_segment = 0;
  int64_t peak_bytes = 0;
};

/// A step with cuts, event by event.
struct StepSimulation {
  int64_t peak_bytes = 0;
  StepMoment peak;
  /// Of the peak, what no plan moves: gradients and workspaces of backward, or what a forward has
  /// alive that keeps nothing.
  int64_t peak_fixed_bytes = 0;
  int64_t forward_peak_bytes = 0;
  int64_t kept_bytes = 0;  ///< What is kept when the forward has ended, without what the program
                           ///< itself holds
  double rerun_us = 0;
  int64_t offloaded_bytes = 0;  ///< Of storages that leave the device
  double waited_us = 0;         ///< For copies
  std::vector<int32_t> runs;    ///< Per record, beyond the forward's run
  int32_t replays = 0;          ///< Units that are replayed
  std::vector<TopUnit> top_units;
};

/// @throws std::logic_error if a replay would need a value from outside of its unit that the cuts
/// do not keep.
/// @throws std::invalid_argument as StepCuts::validate does, and StepProfile::validate.
///
/// Peaks with OFFLOAD hold whatever the speed of the copies: see Note [Peaks with OFFLOAD] in
/// policy/memory_plan/offload_moves.h. Without `offload` it counts as SAVE.
REMAT_API StepSimulation simulate_step(const StepProfile& profile, const StepCuts& cuts,
                                       const ReplayCosts& costs = {},
                                       const OffloadTerms& offload = {});

/// The peak of the step without remat: all that autograd saves stays until its node has run.
/// @throws std::invalid_argument as StepProfile::validate.
REMAT_API int64_t plain_peak_bytes(const StepProfile& profile);

}  // namespace remat
