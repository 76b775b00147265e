// SPDX-License-Identifier: BSD-3-Clause

// What is alive at each moment that a chart shows, few enough rows for a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <remat/recording/memory_blocks.h>

#include "report_words.h"

namespace remat::detail {

/// What blocks of a row have in common; numbers are of ReportWords.
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

/// Blocks of one origin that are alive at the same moments, [begin, end) of those that are shown.
struct ReportRow {
  size_t begin = 0;
  size_t end = 0;
  size_t origin = 0;
  int64_t blocks = 0;
  int64_t bytes = 0;
};

struct ReportRows {
  std::vector<BlockOrigin> origins;
  std::vector<ReportRow> rows;  ///< By begin
};

class RowMaker {
 public:
  RowMaker(const Recording& recording, const ReportLabels& labels, ReportWords& words);

  /// That saved it, whose op made it, or of whose op the node is that made it; 0: none.
  uint64_t region_of(const MemoryBlock& block) const;
  BlockOrigin origin_of(const MemoryBlock& block) const;

  /// All blocks that are alive at one of `moments`, places in Recording::memory. If these are more
  /// than `most` rows, those that are alive at moment `peak` and then the largest.
  ReportRows rows_of(const std::vector<MemoryBlock>& blocks, const std::vector<size_t>& moments,
                     size_t peak, size_t most) const;

 private:
  const Recording& recording_;
  const ReportLabels& labels_;
  ReportWords& words_;
  const std::vector<size_t> node_ops_;
};

}  // namespace remat::detail
