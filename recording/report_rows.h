// SPDX-License-Identifier: BSD-3-Clause

// Rows for what is alive at each moment of a chart, few enough for a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <remat/recording/memory_blocks.h>

#include "report_words.h"

namespace remat::detail {

/// The properties that the blocks of a row share. The numbers are those of ReportWords.
struct BlockOrigin {
  BlockKind kind = BlockKind::kOutside;
  uint32_t op = 0;
  uint32_t node = 0;
  uint32_t label = 0;
  int64_t slot = MemoryBlock::kNoSlot;
  uint32_t call = 0;
  uint32_t line = 0;

  auto all() const { return std::tie(kind, op, node, label, slot, call, line); }
  bool operator<(const BlockOrigin& other) const { return all() < other.all(); }
};

/// Blocks of one origin that are alive in the same range of shown moments, [begin, end).
struct ReportRow {
  size_t begin = 0;
  size_t end = 0;
  size_t origin = 0;
  int64_t blocks = 0;
  int64_t bytes = 0;
};

struct ReportRows {
  std::vector<BlockOrigin> origins;
  std::vector<ReportRow> rows;  ///< Ordered by begin.
};

class RowMaker {
 public:
  RowMaker(const Recording& recording, const ReportLabels& labels, ReportWords& words);

  /// The region that saved the block, else the one whose op, or whose op's node, made it; 0 if
  /// none.
  uint64_t region_of(const MemoryBlock& block) const;
  BlockOrigin origin_of(const MemoryBlock& block) const;

  /// The rows for all blocks that are alive at one of `moments` (indices into Recording::memory).
  /// If there are more than `most`, keeps those alive at moment `peak` first, then the largest.
  ReportRows rows_of(const std::vector<MemoryBlock>& blocks, const std::vector<size_t>& moments,
                     size_t peak, size_t most) const;

 private:
  const Recording& recording_;
  const ReportLabels& labels_;
  ReportWords& words_;
  const std::vector<size_t> node_ops_;
};

}  // namespace remat::detail
