// SPDX-License-Identifier: BSD-3-Clause

// Cuts of a region's tape into segments.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/policy/policy.h>

namespace remat {

class RegionPolicy;

/// Cuts a region that is replayed from its tape into segments. Backward replays each segment by
/// itself, so the saved tensors of only one segment are in memory at a time. Cuts need not match
/// functions or modules.
///
/// The forward keeps each tensor that one segment makes and another reads, until the last saved
/// tensor computed from that tensor is freed. The segments of a group are first replayed together
/// to recompute the tensors between them, which are then kept until their backward has passed; the
/// forward keeps only the group's inputs and outputs. Groups may nest. Each level runs its ops once
/// more, and so saves the memory of the tensors between its segments.
///
/// For example, three segments of which the last two are a group:
/// {.positions = {40, 80}, .groups = {{1, 3}}}.
struct Cuts {
  /// Segments begin to end - 1.
  struct Group {
    size_t begin;
    size_t end;
  };

  /// Segment i ends before record positions[i] of the tape, as numbered by RegionTape::str().
  /// Ascending, each at least 1; the last segment ends with the function.
  std::vector<size_t> positions{};

  /// Groups of at least two segments. Any two groups are nested or disjoint.
  std::vector<Group> groups{};

  /// The policy of each segment; null gives a segment no policy. If this list is empty, all
  /// segments have CheckpointOptions::policy. Values that SAVE and OFFLOAD rules match are kept
  /// from the last run before the segment's backward: the forward, or the replay of the innermost
  /// group around the segment. A value is kept only if backward or a recomputed op reads the value.
  std::vector<std::shared_ptr<const RegionPolicy>> policies{};

  /// A value that a record makes. `result` is an index into the new tensors that the record
  /// returns, in order, followed by the tensors that it writes.
  struct Kept {
    size_t record;
    size_t result = 0;
    Policy policy = Policy::kSave;  ///< kSave or kOffload
  };

  /// If set, these values and those that policies keep are the only values that cross a cut or are
  /// kept. Each of these values is kept as if a rule of its segment matched that value and no
  /// other. Ascending by record and result. If a replay would need another value, the region raises
  /// when the function returns. A region of one segment may have such a list, too.
  std::optional<std::vector<Kept>> keep{};

  bool empty() const { return positions.empty() && !keep; }
  size_t segment_count() const { return positions.size() + 1; }
};

/// Throws a ValueError that begins with `where` if the cuts are invalid.
REMAT_API void check_cuts(const Cuts& cuts, const std::string& where);

}  // namespace remat
