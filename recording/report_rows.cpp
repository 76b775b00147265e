// SPDX-License-Identifier: BSD-3-Clause

#include "report_rows.h"

#include <algorithm>
#include <map>

#include <remat/recording/replay_links.h>

namespace remat::detail {
namespace {

size_t first_from(const std::vector<size_t>& moments, size_t event) {
  return static_cast<size_t>(std::lower_bound(moments.begin(), moments.end(), event) -
                             moments.begin());
}

void keep_most(std::vector<ReportRow>& rows, size_t peak, size_t most) {
  if (rows.size() <= most) return;
  const auto is_at_peak = [&](const ReportRow& row) { return row.begin <= peak && peak < row.end; };
  std::stable_sort(rows.begin(), rows.end(), [&](const ReportRow& a, const ReportRow& b) {
    if (is_at_peak(a) != is_at_peak(b)) return is_at_peak(a);
    return a.bytes > b.bytes;
  });
  rows.resize(most);
}

/// Keeps the origins that rows use, and numbers them anew.
void keep_named(ReportRows& made, const std::vector<BlockOrigin>& all) {
  std::vector<size_t> places(all.size(), MemoryBlock::kNone);
  for (ReportRow& row : made.rows) {
    size_t& place = places[row.origin];
    if (place == MemoryBlock::kNone) {
      place = made.origins.size();
      made.origins.push_back(all[row.origin]);
    }
    row.origin = place;
  }
}

}  // namespace

RowMaker::RowMaker(const Recording& recording, const ReportLabels& labels, ReportWords& words)
    : recording_(recording), labels_(labels), words_(words), node_ops_(ops_of_nodes(recording)) {}

uint64_t RowMaker::region_of(const MemoryBlock& block) const {
  if (block.slot != MemoryBlock::kNoSlot) return block.slot_region;
  if (block.region != 0 || block.node == MemoryBlock::kNone) return block.region;
  const size_t op = node_ops_[block.node];
  return op == kNoOp ? 0 : recording_.ops[op].region;
}

BlockOrigin RowMaker::origin_of(const MemoryBlock& block) const {
  BlockOrigin origin;
  origin.kind = block.kind;
  if (block.op != MemoryBlock::kNone)
    origin.op = words_.number_of(recording_.text(recording_.ops[block.op].name));
  if (block.node != MemoryBlock::kNone)
    origin.node = words_.number_of(recording_.text(recording_.nodes[block.node].name));
  origin.label = words_.number_of(labels_.label_of(region_of(block)));
  origin.slot = block.slot;
  origin.call = words_.number_of(labels_.call_of(block.region, block.call));
  origin.line = words_.number_of(recording_.text(block.line));
  return origin;
}

ReportRows RowMaker::rows_of(const std::vector<MemoryBlock>& blocks,
                             const std::vector<size_t>& moments, size_t peak, size_t most) const {
  ReportRows made;
  std::map<BlockOrigin, size_t> origins;
  std::map<std::tuple<size_t, size_t, size_t>, ReportRow> rows;
  for (const MemoryBlock& block : blocks) {
    const size_t begin = first_from(moments, block.begin);
    const size_t end =
        block.end == MemoryBlock::kNone ? moments.size() : first_from(moments, block.end);
    if (begin == end) continue;
    const auto origin = origins.emplace(origin_of(block), origins.size()).first->second;
    ReportRow& row = rows[{begin, end, origin}];
    row.begin = begin;
    row.end = end;
    row.origin = origin;
    ++row.blocks;
    row.bytes += block.bytes;
  }
  for (const auto& [key, row] : rows) made.rows.push_back(row);
  keep_most(made.rows, peak, most);
  std::stable_sort(made.rows.begin(), made.rows.end(),
                   [](const ReportRow& a, const ReportRow& b) { return a.begin < b.begin; });
  std::vector<BlockOrigin> all(origins.size());
  for (const auto& [origin, place] : origins) all[place] = origin;
  keep_named(made, all);
  return made;
}

}  // namespace remat::detail
