// SPDX-License-Identifier: BSD-3-Clause

// Cuts of a tape that a plan or a measurement has made.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <remat/engine/cuts.h>
#include <remat/engine/expected_tape.h>
#include <remat/engine/export.h>
#include <remat/policy/offload_terms.h>

namespace remat {

class OffloadStore;

/// Cuts of CheckpointOptions::plan. Only these cuts decide what is kept. A named call just calls
/// its function, whatever its policy and name.
struct PlannedCuts : Cuts {
  /// The tape for which positions, groups and keep were made. If set, the tape is compared with
  /// `expected` as it is recorded. From the first difference on, positions, groups and keep no
  /// longer apply. The open segment and the groups around it are the last planned ones, and saved
  /// tensors are kept as in plain code until a cut is possible that few bytes cross. From that cut
  /// on, a new segment begins about every `rest_bytes` of new memory, where no more bytes cross
  /// than the segment saves, and every value that crosses is kept. No region is refused after a
  /// difference.
  std::shared_ptr<const ExpectedTape> expected{};
  size_t rest_bytes = size_t{64} << 20;

  /// Called at the first difference, once per forward, on the forward's thread. Must not throw.
  std::function<void(const TapeDifference&)> differs{};

  /// The terms of the store for which OFFLOAD entries of `keep` were planned. A store that moves
  /// more bytes at once, or has room for fewer bytes, is refused.
  std::optional<OffloadTerms> offload{};

  /// Cuts the tape while it is recorded, for a function whose ops are unknown; positions, groups
  /// and keep are empty. One group contains all segments, so the forward keeps nothing. A segment
  /// ends when it saves as many bytes as cross its end and all earlier cuts together. So if n bytes
  /// are saved in all and c bytes cross each cut, there are about sqrt(2 * n / c) segments.
  bool while_recorded = false;
};

/// Throws a ValueError that begins with `where` if the cuts move values and `store` does not match
/// the terms for which they were planned.
REMAT_API void check_offload(const PlannedCuts& cuts, const OffloadStore& store,
                             const std::string& where);

}  // namespace remat
