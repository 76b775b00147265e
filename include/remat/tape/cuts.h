// SPDX-License-Identifier: BSD-3-Clause

// Where a region's tape is cut.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/policy/offload_terms.h>
#include <remat/policy/policy.h>
#include <remat/tape/expected_tape.h>
#include <remat/tape/export.h>

namespace remat {

class OffloadStore;
class RegionPolicy;

/// Cuts a region that is replayed from its tape into segments, each of which backward replays by
/// itself: only one is whole in memory at a time. Cuts need not match functions or modules.
///
/// Kept from the forward: the tensors that one segment makes and another reads, each until the last
/// saved tensor that is made from it is freed. Segments of a group are replayed together first, for
/// the tensors between them, which are then kept until backward has passed; the forward keeps only
/// what goes into the group and what comes out of it. Groups nest: each level costs another run of
/// its ops and saves what is between its segments.
///
/// Three segments, of which the last two are a group: {.positions = {40, 80}, .groups = {{1, 3}}}.
struct Cuts {
  /// Segments begin to end - 1.
  struct Group {
    size_t begin;
    size_t end;
  };

  /// Segment i ends before record positions[i] of the tape (RegionTape::str() numbers them).
  /// Ascending, from 1 on; the last segment ends with the function.
  std::vector<size_t> positions{};

  /// Any two groups lie inside each other or apart. At least two segments each.
  std::vector<Group> groups{};

  /// The policy of each segment, null for none; empty: CheckpointOptions::policy for all. What SAVE
  /// and OFFLOAD rules match is kept from the run that leaves the segment for backward: the
  /// forward, or the replay of the innermost group around the segment. It is kept only if a
  /// backward or an op that is run again reads it.
  std::vector<std::shared_ptr<const RegionPolicy>> policies{};

  /// A value that a record makes. `result`: which of the new tensors that it returns, in order;
  /// then, counted on, which of the tensors that it writes.
  struct Kept {
    size_t record;
    size_t result = 0;
    Policy policy = Policy::kSave;  ///< Or kOffload.
  };

  /// If given, no other value crosses a cut or is kept but what policies say: these are, each as if
  /// a rule of its segment matched it alone. Ascending by record and result. A replay that would
  /// need another one is refused when the function returns. One segment may have such a list, too.
  std::optional<std::vector<Kept>> keep{};

  /// What they were planned for, of the store that OFFLOAD in `keep` moves to. One that has more on
  /// its way at once, or moves less, is refused.
  std::optional<OffloadTerms> offload{};

  /// What positions, groups and keep were made for. If given, the tape is compared with it while it
  /// is recorded. From the first difference on they no longer count: the open segment and the
  /// groups around it are the last planned ones, and what differs is kept as autograd saves it
  /// until little crosses a cut; from there on a segment more begins about each time that
  /// `rest_bytes` of new memory were made, where no more crosses than was saved, and whatever
  /// crosses is kept. Nothing is refused then.
  std::shared_ptr<const ExpectedTape> expected{};
  size_t rest_bytes = size_t{64} << 20;

  /// Told of that difference, once in a forward, on its thread. Must not throw.
  std::function<void(const TapeDifference&)> differs{};

  /// Named calls of the function are plain calls of their functions, whatever their policies and
  /// names: what is kept is up to these cuts alone.
  bool plain_calls = false;

  bool empty() const { return positions.empty() && !keep; }
  size_t segment_count() const { return positions.size() + 1; }
};

/// Throws ValueError, beginning with `where`, if they are no cuts.
REMAT_API void check_cuts(const Cuts& cuts, const std::string& where);

/// The same if they move values and there is no `store`, or one that they were not planned for.
REMAT_API void check_offload(const Cuts& cuts, const OffloadStore& store, const std::string& where);

}  // namespace remat
