// SPDX-License-Identifier: BSD-3-Clause

// Each block of memory of a recording: how long it lived, who made it, and what for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

enum class BlockKind : uint8_t {
  kOutside,         ///< Made outside of regions and of backward
  kForward,         ///< Made in the forward of a region, and kept by no call
  kKept,            ///< The same, kept by a SAVE or OFFLOAD call or a rule
  kReplayed,        ///< Made again by a replay
  kBackward,        ///< Made by a node of backward
  kWeightGradient,  ///< The same, and given to a leaf as its gradient
};
constexpr size_t kBlockKinds = 6;

/// "outside of regions", "forward", "kept", "replayed", "backward", "weights' gradients"
REMAT_API const char* kind_name(BlockKind kind);

struct MemoryBlock {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  static constexpr int64_t kNoSlot = -1;

  size_t begin = 0;    ///< Recording::memory[begin] allocated it,
  size_t end = kNone;  ///< and [end] freed it; kNone: nothing did.
  uint64_t address = 0;
  int64_t bytes = 0;
  StringId device = 0;
  uint32_t thread = 0;
  BlockKind kind = BlockKind::kOutside;
  size_t op = kNone;       ///< The innermost that made it, in Recording::ops; kNone: no op did.
  size_t node = kNone;     ///< The innermost of backward that made it, or whose result the engine
                           ///< has summed or cast, in Recording::nodes
  uint64_t region = 0;     ///< Of the op; 0: none.
  int64_t slot = kNoSlot;  ///< The first in which autograd saved it, in the region `slot_region`
  uint64_t slot_region = 0;
  StringId call = 0;  ///< The SAVE or OFFLOAD call that made it; 0: none.
  StringId line = 0;  ///< Of the op that made it, of the op of the forward that this runs again, or
                      ///< of the one whose node made it; 0: not known.

  /// Right after the memory event of that place.
  bool is_alive_after(size_t event) const { return begin <= event && event < end; }
};

/// In the order in which they were allocated. What is freed out of sight lives until its address
/// comes again.
REMAT_API std::vector<MemoryBlock> memory_blocks(const Recording& recording);

/// Bytes alive by kind.
struct REMAT_API AliveByKind {
  TimeNs time_ns = 0;
  std::array<int64_t, kBlockKinds> bytes{};  ///< By BlockKind

  int64_t total() const;
};

/// After each of Recording::memory.
REMAT_API std::vector<AliveByKind> alive_by_kind(const Recording& recording,
                                                 const std::vector<MemoryBlock>& blocks);

/// The first place in `alive` where most is alive; kNone if nothing ever is.
REMAT_API size_t peak_of(const std::vector<AliveByKind>& alive);

}  // namespace remat
