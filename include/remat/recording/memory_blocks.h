// SPDX-License-Identifier: BSD-3-Clause

// The memory blocks of a recording: lifetime, maker and purpose of each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

enum class BlockKind : uint8_t {
  kOutside,   ///< Made outside of regions and of backward
  kForward,   ///< Made in the forward of a region, and not kept by a call
  kKept,      ///< Made in the forward of a region, and kept by a SAVE or OFFLOAD call or a rule
  kReplayed,  ///< Recomputed by a replay
  kBackward,  ///< Made by a node of backward
  kWeightGradient,  ///< Made by a node of backward, and given to a leaf as its gradient
};
constexpr size_t kBlockKinds = 6;

/// Name of a kind: "outside of regions", "forward", "kept", "replayed", "backward", "weights'
/// gradients".
REMAT_API const char* kind_name(BlockKind kind);

struct MemoryBlock {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  static constexpr int64_t kNoSlot = -1;

  size_t begin = 0;    ///< Recording::memory[begin] allocated it
  size_t end = kNone;  ///< Recording::memory[end] freed it; kNone: it was not freed
  int64_t bytes = 0;
  StringId device = 0;
  BlockKind kind = BlockKind::kOutside;
  size_t op = kNone;    ///< Index in Recording::ops of the innermost op that made it; kNone: none
  size_t node = kNone;  ///< Index in Recording::nodes of the innermost node that made the block,
                        ///< or whose result the engine summed or cast into the block; kNone: none
  uint64_t region = 0;  ///< Region of the op; 0: none
  int64_t slot = kNoSlot;  ///< Slot of slot_region for which autograd first saved the block
  uint64_t slot_region = 0;
  StringId call = 0;  ///< The SAVE or OFFLOAD call that made the block; 0: none
  StringId line = 0;  ///< Line of the op that made the block, of the forward op that this op
                      ///< replays, or of the forward op whose node made the block; 0: unknown

  /// True if the block is alive right after Recording::memory[event].
  bool is_alive_after(size_t event) const { return begin <= event && event < end; }
};

/// All blocks in the order of their allocation. A block whose free was not recorded lives until its
/// address is allocated again.
REMAT_API std::vector<MemoryBlock> memory_blocks(const Recording& recording);

/// Bytes alive by kind.
struct REMAT_API AliveByKind {
  TimeNs time_ns = 0;
  std::array<int64_t, kBlockKinds> bytes{};  ///< Indexed by BlockKind

  int64_t total() const;
};

/// Bytes alive after each event of Recording::memory.
REMAT_API std::vector<AliveByKind> alive_by_kind(const Recording& recording,
                                                 const std::vector<MemoryBlock>& blocks);

/// Index of the first maximum of total() in `alive`; kNone if nothing is ever alive.
REMAT_API size_t peak_of(const std::vector<AliveByKind>& alive);

}  // namespace remat
