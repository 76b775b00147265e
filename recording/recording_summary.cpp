// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>
#include <remat/recording/replay_links.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/region_labels.h>

namespace remat {
namespace {

/// Counts regions by label in `totals`. Returns by region the index of its label in `totals`.
std::unordered_map<uint64_t, size_t> count_regions(const Recording& recording,
                                                   std::vector<RegionTotals>& totals) {
  std::unordered_map<uint64_t, size_t> places;
  std::unordered_map<StringId, size_t> labels;
  for (const auto& region : recording.regions) {
    if (places.count(region.region) > 0) continue;  // a later event of a region already counted
    const auto [label, is_new] = labels.emplace(region.label, totals.size());
    if (is_new) totals.emplace_back().label = recording.text(region.label);
    places.emplace(region.region, label->second);
    ++totals[label->second].regions;
  }
  return places;
}

template <class Events>
TimeNs last_time(const Events& events) {
  TimeNs last = 0;
  for (const auto& event : events) {
    if constexpr (requires { event.end_ns; }) {
      last = std::max(last, event.end_ns);
    } else {
      last = std::max(last, event.time_ns);
    }
  }
  return last;
}

TimeNs end_of(const Recording& recording) {
  return std::max({last_time(recording.ops), last_time(recording.memory),
                   last_time(recording.nodes), last_time(recording.marks)});
}

/// Adds up the blocks that are alive at the peak, by kind, op, region label and line.
std::vector<PeakRow> peak_rows(const Recording& recording, const std::vector<MemoryBlock>& blocks,
                               size_t peak) {
  const detail::RegionLabels labels(recording);
  std::vector<PeakRow> rows;
  std::map<std::tuple<BlockKind, std::string, std::string, std::string>, size_t> places;
  for (const MemoryBlock& block : blocks) {
    if (!block.is_alive_after(peak)) continue;
    const bool has_op = block.op != MemoryBlock::kNone;
    PeakRow row{.kind = block.kind,
                .op = has_op ? recording.text(recording.ops[block.op].name) : "",
                .region = labels.of(block.region),
                .line = recording.text(block.line)};
    const auto [known, is_new] =
        places.try_emplace(std::tuple(row.kind, row.op, row.region, row.line), rows.size());
    if (is_new) rows.push_back(std::move(row));
    rows[known->second].bytes += block.bytes;
    ++rows[known->second].blocks;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const PeakRow& a, const PeakRow& b) { return a.bytes > b.bytes; });
  return rows;
}

void add_kept(RegionTotals& totals, const std::string& call, int64_t bytes) {
  const auto known = std::find_if(totals.kept.begin(), totals.kept.end(),
                                  [&](const KeptTotals& kept) { return kept.call == call; });
  KeptTotals& kept = known == totals.kept.end() ? totals.kept.emplace_back() : *known;
  kept.call = call;
  ++kept.blocks;
  kept.bytes += bytes;
}

void add_memory(const Recording& recording, const std::vector<MemoryBlock>& blocks,
                RecordingSummary& summary) {
  const std::vector<AliveByKind> alive = alive_by_kind(recording, blocks);
  if (!alive.empty()) summary.end_bytes = alive.back().total();
  const size_t peak = peak_of(alive);
  if (peak == MemoryBlock::kNone) return;
  summary.peak = alive[peak];
  summary.peak_bytes = alive[peak].total();
  summary.peak_ns = alive[peak].time_ns;
  for (const MemoryBlock& block : blocks) {
    if (!block.is_alive_after(peak)) continue;
    if (block.op != MemoryBlock::kNone) summary.peak_bytes_of_ops += block.bytes;
    if (block.line != 0) summary.peak_bytes_of_lines += block.bytes;
  }
  summary.peak_rows = peak_rows(recording, blocks, peak);
}

}  // namespace

RecordingSummary summary_of(const Recording& recording) {
  RecordingSummary summary;
  const auto places = count_regions(recording, summary.regions);
  // Null for a region that is not in the recording.
  const auto totals_of = [&](uint64_t region) -> RegionTotals* {
    const auto known = places.find(region);
    return known == places.end() ? nullptr : &summary.regions[known->second];
  };
  const std::vector<bool> left_out = left_out_ops(recording);
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    const auto& op = recording.ops[i];
    if (left_out[i]) ++summary.left_out;
    if (op.depth > 0 || left_out[i]) continue;
    const auto add = [&](OpTotals& to) {
      ++to.ops;
      to.ns += op.end_ns - op.begin_ns;
    };
    add(summary.by_phase.at(static_cast<size_t>(op.phase)));
    RegionTotals* const region = totals_of(op.region);
    if (region) add(op.phase == OpPhase::kReplay ? region->replay : region->forward);
  }
  for (const auto& save : recording.saves) {
    RegionTotals* const region = save.is_replay ? nullptr : totals_of(save.region);
    if (region) ++(save.is_kept ? region->kept_slots : region->slots);
  }
  const std::vector<MemoryBlock> blocks = memory_blocks(recording);
  const detail::RegionLabels labels(recording);
  for (const MemoryBlock& block : blocks) {
    if (block.kind != BlockKind::kKept) continue;
    // If call is 0, the block was made before the call that kept it, perhaps in another region, so
    // it counts for the region that kept it.
    const uint64_t region = block.call != 0 ? block.region : block.slot_region;
    if (RegionTotals* const totals = totals_of(region))
      add_kept(*totals, detail::folded_label(labels.call_of(region, block.call)), block.bytes);
  }
  for (RegionTotals& totals : summary.regions)
    std::stable_sort(totals.kept.begin(), totals.kept.end(),
                     [](const KeptTotals& a, const KeptTotals& b) { return a.bytes > b.bytes; });
  summary.end_ns = end_of(recording);
  add_memory(recording, blocks, summary);
  return summary;
}

}  // namespace remat
