// SPDX-License-Identifier: BSD-3-Clause

// Rows for what is alive at each moment of a chart, few enough for a page.
#include "report_data.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <remat/recording/replay_links.h>

namespace remat::detail {
namespace {

size_t first_from(const std::vector<size_t>& moments, size_t event) {
  return static_cast<size_t>(std::lower_bound(moments.begin(), moments.end(), event) -
                             moments.begin());
}

void keep_largest(std::vector<ReportRow>& rows, size_t peak, size_t limit) {
  if (rows.size() <= limit) return;
  const auto is_at_peak = [&](const ReportRow& row) { return row.begin <= peak && peak < row.end; };
  std::stable_sort(rows.begin(), rows.end(), [&](const ReportRow& a, const ReportRow& b) {
    if (is_at_peak(a) != is_at_peak(b)) return is_at_peak(a);
    return a.bytes > b.bytes;
  });
  rows.resize(limit);
}

}  // namespace

uint32_t ReportTexts::number_of(const std::string& text) {
  constexpr size_t kLimit = 400;
  const auto [known, is_new] = numbers_.emplace(text, static_cast<uint32_t>(all_.size()));
  if (is_new) all_.push_back(text.size() <= kLimit ? text : text.substr(0, kLimit) + "...");
  return known->second;
}

RowMaker::RowMaker(const Recording& recording, const RegionLabels& labels, ReportTexts& texts)
    : recording_(recording), labels_(labels), texts_(texts), node_ops_(ops_of_nodes(recording)) {}

uint64_t RowMaker::region_of(const MemoryBlock& block) const {
  if (block.slot != MemoryBlock::kNoSlot) return block.slot_region;
  if (block.region != 0 || block.node == MemoryBlock::kNone) return block.region;
  const size_t op = node_ops_[block.node];
  return op == kNoOp ? 0 : recording_.ops[op].region;
}

BlockOrigin RowMaker::origin_of(const MemoryBlock& block) const {
  const StringId op = block.op == MemoryBlock::kNone ? 0 : recording_.ops[block.op].name;
  const StringId node = block.node == MemoryBlock::kNone ? 0 : recording_.nodes[block.node].name;
  return {static_cast<int64_t>(block.kind),
          texts_.number_of(recording_.text(op)),
          texts_.number_of(recording_.text(node)),
          texts_.number_of(labels_.of(region_of(block))),
          block.slot,
          texts_.number_of(labels_.call_of(block.region, block.call)),
          texts_.number_of(recording_.text(block.line))};
}

std::vector<ReportRow> RowMaker::rows_of(const std::vector<MemoryBlock>& blocks,
                                         const std::vector<size_t>& moments, size_t peak,
                                         size_t limit) const {
  std::map<std::tuple<size_t, size_t, BlockOrigin>, ReportRow> by_key;
  for (const MemoryBlock& block : blocks) {
    const size_t begin = first_from(moments, block.begin);
    const size_t end =
        block.end == MemoryBlock::kNone ? moments.size() : first_from(moments, block.end);
    if (begin == end) continue;
    const BlockOrigin origin = origin_of(block);
    ReportRow& row =
        by_key.try_emplace({begin, end, origin}, ReportRow{begin, end, origin}).first->second;
    ++row.blocks;
    row.bytes += block.bytes;
  }
  std::vector<ReportRow> rows;
  for (const auto& [key, row] : by_key) rows.push_back(row);
  keep_largest(rows, peak, limit);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ReportRow& a, const ReportRow& b) { return a.begin < b.begin; });
  return rows;
}

}  // namespace remat::detail
