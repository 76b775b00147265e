// SPDX-License-Identifier: BSD-3-Clause

// The parts of a report's page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/region_labels.h>

namespace remat::detail {

// The files of recording/report/, which the build embeds into the library.
extern const std::string_view kReportPage;    ///< HTML with {style}, {data} and {script}
extern const std::string_view kReportStyle;   ///< CSS
extern const std::string_view kReportScript;  ///< JavaScript

/// The data of one recording. Note [Data of a page]: times are nanoseconds, and each list of times
/// holds differences to the entry before; a text is an index into "words". A list of objects is
/// stored as one list for each field.
nlohmann::ordered_json report_data(const Recording& recording, const std::string& name,
                                   size_t most_points, size_t most_rows);

/// The texts of a report, each stored once. Numbers them from 0, which is the empty text.
class ReportTexts {
 public:
  ReportTexts() { number_of(""); }

  /// Text longer than a few lines is cut.
  uint32_t number_of(const std::string& text);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

/// The properties that the blocks of a row share: kind, op, node, region, slot, call and line. The
/// kind is a BlockKind, and texts are numbers of ReportTexts.
using BlockOrigin = std::array<int64_t, 7>;

/// Blocks of one origin that are alive in the same range of shown moments, [begin, end).
struct ReportRow {
  size_t begin = 0;
  size_t end = 0;
  BlockOrigin origin{};
  int64_t blocks = 0;
  int64_t bytes = 0;
};

class RowMaker {
 public:
  RowMaker(const Recording& recording, const RegionLabels& labels, ReportTexts& texts);

  /// The region that saved the block; else the region of the op that made it, or of the forward op
  /// whose node made it; 0 if none.
  uint64_t region_of(const MemoryBlock& block) const;
  BlockOrigin origin_of(const MemoryBlock& block) const;

  /// The rows for all blocks that are alive at one of `moments` (indices into Recording::memory),
  /// ordered by begin. If there are more than `limit`, keeps the rows that are alive at
  /// moments[peak] first, then the largest.
  std::vector<ReportRow> rows_of(const std::vector<MemoryBlock>& blocks,
                                 const std::vector<size_t>& moments, size_t peak,
                                 size_t limit) const;

 private:
  const Recording& recording_;
  const RegionLabels& labels_;
  ReportTexts& texts_;
  const std::vector<size_t> node_ops_;
};

}  // namespace remat::detail
