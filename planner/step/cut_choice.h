// SPDX-License-Identifier: BSD-3-Clause

// Chooses cut positions so that one large value passes from region to region. Uses the records
// between which each storage of a step is needed.
#pragma once

#include <cstdint>
#include <vector>

#include "step_graph.h"

namespace remat::detail {

/// For each storage that the step makes, the records from its making to its last read or save.
struct ValueSpans {
  explicit ValueSpans(const StepGraph& graph);

  bool is_inner(int32_t storage) const { return last_use[storage] >= 0; }
  int32_t length(int32_t storage) const { return last_use[storage] - first[storage]; }

  std::vector<int32_t> first;       ///< Per storage, by its first value: the record that makes it
  std::vector<int32_t> last_use;    ///< Per storage: the last record that needs it; -1: not made
                                    ///< by the step, or empty
  std::vector<int32_t> last_write;  ///< Per storage: the last record that writes it, or -1
  std::vector<char> saved;          ///< Per storage: true if backward needs it
  /// Per position: storages that earlier records make and later ones need.
  std::vector<std::vector<int32_t>> crossing;
  /// Per record: bytes that earlier records make. The last entry is the sum over all records.
  std::vector<int64_t> made_before;
  int64_t total_bytes() const { return made_before.back(); }
  int64_t small_bytes = 0;  ///< Values below this size count as small: statistics, scalars

 private:
  int64_t find_small_bytes(const StepGraph& graph) const;
};

struct StepRegions {
  std::vector<int32_t> positions;
  std::vector<int32_t> passing;  ///< Per position: the storage that is the region's output, or -1
  std::vector<char> pinned;      ///< Per storage: true if always kept
};

/// `most_share` and `least_share` are shares of the bytes that the step makes. Regions heavier than
/// `most_share` are cut further if possible. Cuts at recurring positions are taken only if at most
/// a tenth of the regions are then lighter than `least_share`.
StepRegions choose_regions(const StepGraph& graph, const ValueSpans& spans,
                           double most_share = 0.12, double least_share = 0.03);

}  // namespace remat::detail
