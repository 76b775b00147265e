// SPDX-License-Identifier: BSD-3-Clause

// The totals of a recording.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording.h>

namespace remat {

/// Number and time of ops that were not called by another op.
struct OpTotals {
  int64_t ops = 0;
  int64_t ns = 0;
  bool operator==(const OpTotals&) const = default;
};

/// Memory kept by calls of one name, or of names that differ in numbers only.
struct KeptTotals {
  std::string call;  ///< "gate (SAVE)"; "aten::mm#* (SAVE)" for a rule; "": blocks made before the
                     ///< call that kept them
  int64_t blocks = 0;
  int64_t bytes = 0;
  bool operator==(const KeptTotals&) const = default;
};

/// Totals of all regions with one label.
struct RegionTotals {
  std::string label;
  int64_t regions = 0;
  OpTotals forward;
  OpTotals replay;
  int64_t slots = 0;       ///< Tensors that autograd saved in forwards and the regions dropped
  int64_t kept_slots = 0;  ///< Tensors that autograd saved and calls kept (not in `slots`)
  std::vector<KeptTotals> kept{};  ///< Memory that SAVE and OFFLOAD calls kept, most bytes first
  bool operator==(const RegionTotals&) const = default;
};

/// Blocks alive at the peak that one op made at one line, in all regions with one label.
struct PeakRow {
  BlockKind kind = BlockKind::kOutside;
  std::string op{};      ///< Empty: no op made them
  std::string region{};  ///< Label of the region; empty: made outside of regions
  std::string line{};    ///< Empty: unknown
  int64_t bytes = 0;
  int64_t blocks = 0;
  bool operator==(const PeakRow&) const = default;
};

struct RecordingSummary {
  std::array<OpTotals, 4> by_phase;  ///< Indexed by OpPhase
  int64_t left_out = 0;  ///< Number of ops that replays skipped because a rule keeps their results
  std::vector<RegionTotals> regions;  ///< In the order in which their labels came first
  TimeNs end_ns = 0;                  ///< Time of the last event
  int64_t peak_bytes = 0;  ///< Largest total of memory allocated while recording, on all devices
  TimeNs peak_ns = 0;      ///< Time of the peak
  AliveByKind peak;        ///< The peak by kind
  std::vector<PeakRow> peak_rows;   ///< Blocks alive at the peak, most bytes first
  int64_t peak_bytes_of_ops = 0;    ///< Bytes of the peak made by recorded ops
  int64_t peak_bytes_of_lines = 0;  ///< Bytes of the peak whose line is known
  int64_t end_bytes = 0;            ///< Bytes alive at the end
};

REMAT_API RecordingSummary summary_of(const Recording& recording);

}  // namespace remat
