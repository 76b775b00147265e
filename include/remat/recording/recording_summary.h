// SPDX-License-Identifier: BSD-3-Clause

// What a recording comes to, in numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording.h>

namespace remat {

/// Ops that no other op has called, and their time.
struct OpTotals {
  int64_t ops = 0;
  int64_t ns = 0;
  bool operator==(const OpTotals&) const = default;
};

/// What calls of one name kept, or of names that differ by numbers alone.
struct KeptTotals {
  std::string call;  ///< "gate (SAVE)", "aten::mm#* (SAVE)": a rule's; "": made before the call
  int64_t blocks = 0;
  int64_t bytes = 0;
  bool operator==(const KeptTotals&) const = default;
};

/// All regions of one label.
struct RegionTotals {
  std::string label;
  int64_t regions = 0;
  OpTotals forward;
  OpTotals replay;
  int64_t slots = 0;               ///< That autograd saved in forwards,
  int64_t kept_slots = 0;          ///< and those that SAVE and OFFLOAD calls kept.
  std::vector<KeptTotals> kept{};  ///< Memory that such calls made and kept, most bytes first
  bool operator==(const RegionTotals&) const = default;
};

/// Blocks alive at the peak that one op made at one line, in all regions of one label.
struct PeakRow {
  BlockKind kind = BlockKind::kOutside;
  std::string op{};      ///< Empty: no op made them.
  std::string region{};  ///< Its label; empty: made outside of regions.
  std::string line{};    ///< Empty: not known.
  int64_t bytes = 0;
  int64_t blocks = 0;
  bool operator==(const PeakRow&) const = default;
};

struct RecordingSummary {
  std::array<OpTotals, 4> by_phase;   ///< By OpPhase
  int64_t left_out = 0;               ///< Ops that replays came to, and that rules SAVE
  std::vector<RegionTotals> regions;  ///< In the order in which their labels came
  TimeNs end_ns = 0;                  ///< Of the last event
  int64_t peak_bytes = 0;             ///< Of what was allocated while recording, on all devices
  TimeNs peak_ns = 0;                 ///< When
  AliveByKind peak;                   ///< Of it
  std::vector<PeakRow> peak_rows;     ///< Of it, those with the most bytes first
  int64_t peak_bytes_of_ops = 0;      ///< Of it, made by ops that are recorded
  int64_t peak_bytes_of_lines = 0;    ///< Of it, of which the line is known
  int64_t end_bytes = 0;              ///< Of it, alive in the end
};

REMAT_API RecordingSummary summary_of(const Recording& recording);

}  // namespace remat
