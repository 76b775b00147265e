// SPDX-License-Identifier: BSD-3-Clause

#include "report_data.h"

#include <remat/recording/folded_label.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>

#include "planned_steps.h"
#include "report_curve.h"
#include "report_rows.h"

namespace remat::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMarks = 500;
constexpr size_t kMostPlans = 500;
constexpr size_t kMostLabels = 1000;

/// Each value as the difference to the one before; the first as it is.
Json differences(const std::vector<int64_t>& values) {
  Json all = Json::array();
  int64_t last = 0;
  for (const int64_t value : values) all.push_back(value - std::exchange(last, value));
  return all;
}

class DataOfRecording {
 public:
  DataOfRecording(const Recording& recording, size_t most_points, size_t most_rows)
      : recording_(recording),
        labels_(recording),
        rows_(recording, labels_, texts_),
        blocks_(memory_blocks(recording)),
        alive_(alive_by_kind(recording, blocks_)),
        summary_(summary_of(recording)),
        most_rows_(most_rows) {
    std::vector<TimeNs> marks;
    for (const auto& mark : recording.marks) {
      if (marks.size() < kMostMarks) marks.push_back(mark.time_ns);
    }
    moments_ = shown_moments(alive_, marks, most_points);
    peak_event_ = peak_of(alive_);
    if (peak_event_ != MemoryBlock::kNone)
      peak_ = static_cast<size_t>(std::find(moments_.begin(), moments_.end(), peak_event_) -
                                  moments_.begin());
  }

  Json run(const std::string& name) {
    const std::string& program = recording_.text(recording_.process.program);
    Json data = {{"name", name.empty() ? program : name},
                 {"program", program},
                 {"pid", recording_.process.pid},
                 {"torch", recording_.text(recording_.process.torch_version)},
                 {"begin_unix_ms", recording_.process.begin_unix_ns / 1'000'000},
                 {"damage", recording_.damage},
                 {"summary", summary()},
                 {"curve", curve()},
                 {"marks", marks()},
                 {"alive", alive()},
                 {"regions", regions()},
                 {"plans", plans()}};
    // Must come last, because the other parts add words.
    data["words"] = texts_.all();
    return data;
  }

 private:
  Json summary() const {
    Json phases = Json::array();
    for (const OpTotals& totals : summary_.by_phase) phases.push_back({totals.ops, totals.ns});
    return {{"phases", phases},
            {"end", summary_.end_ns},
            {"peak_bytes", summary_.peak_bytes},
            {"peak", summary_.peak_ns},
            {"end_bytes", summary_.end_bytes},
            {"events", recording_.ops.size() + recording_.memory.size() + recording_.saves.size() +
                           recording_.loads.size() + recording_.nodes.size()},
            {"replays", recording_.replays.size()}};
  }

  Json curve() const {
    std::vector<int64_t> times;
    for (const size_t place : moments_) times.push_back(alive_[place].time_ns);
    Json by_kind = Json::array();
    for (size_t kind = 0; kind < kBlockKinds; ++kind) {
      std::vector<int64_t> bytes;
      for (const size_t place : moments_) bytes.push_back(alive_[place].bytes[kind]);
      by_kind.push_back(differences(bytes));
    }
    Json json = {{"time", differences(times)}, {"bytes", by_kind}, {"of", alive_.size()}};
    json["peak"] = peak_event_ == MemoryBlock::kNone ? Json(nullptr) : Json(peak_);
    return json;
  }

  Json marks() {
    Json all = Json::array();
    for (const auto& mark : recording_.marks) {
      if (all.size() == kMostMarks) break;
      all.push_back({mark.time_ns, texts_.number_of(recording_.text(mark.name))});
    }
    return all;
  }

  /// Each row's first moment, as a difference, and its number of moments.
  Json alive() {
    const auto [rows, origins] = rows_.rows_of(blocks_, moments_, peak_, most_rows_);
    std::vector<int64_t> begin;
    Json length = Json::array();
    Json origin = Json::array();
    Json bytes = Json::array();
    Json several = Json::array();  // rows of more than one block: the row and its number of blocks
    for (size_t i = 0; i < rows.size(); ++i) {
      const ReportRow& row = rows[i];
      begin.push_back(static_cast<int64_t>(row.begin));
      length.push_back(row.end - row.begin);
      origin.push_back(row.origin);
      bytes.push_back(row.bytes);
      if (row.blocks > 1) several.push_back({i, row.blocks});
    }
    return {
        {"begin", differences(begin)}, {"length", length},  {"origin", origin}, {"bytes", bytes},
        {"several", several},          {"origins", origins}};
  }

  struct RegionRow {
    RegionTotals totals;
    int64_t peak_bytes = 0;
    int64_t kept_bytes = 0;

    void add(const RegionRow& other) {
      totals.regions += other.totals.regions;
      totals.forward.ops += other.totals.forward.ops;
      totals.forward.ns += other.totals.forward.ns;
      totals.replay.ops += other.totals.replay.ops;
      totals.replay.ns += other.totals.replay.ns;
      totals.slots += other.totals.slots;
      totals.kept_slots += other.totals.kept_slots;
      peak_bytes += other.peak_bytes;
      kept_bytes += other.kept_bytes;
    }
  };

  std::vector<RegionRow> region_rows() const {
    std::vector<RegionRow> rows;
    std::map<std::string, size_t> places;
    for (const RegionTotals& totals : summary_.regions) {
      const bool is_new = places.emplace(totals.label, rows.size()).second;
      if (is_new) rows.push_back({totals});
    }
    for (const MemoryBlock& block : blocks_) {
      const uint64_t region = rows_.region_of(block);
      const auto known = region == 0 ? places.end() : places.find(labels_.of(region));
      if (known == places.end()) continue;
      RegionRow& row = rows[known->second];
      if (peak_event_ != MemoryBlock::kNone && block.is_alive_after(peak_event_))
        row.peak_bytes += block.bytes;
      if (block.kind == BlockKind::kKept) row.kept_bytes += block.bytes;
    }
    return rows.size() > kMostLabels ? like_regions(rows) : rows;
  }

  /// Joins labels that differ only by numbers into one row.
  static std::vector<RegionRow> like_regions(const std::vector<RegionRow>& rows) {
    std::vector<RegionRow> folded;
    std::map<std::string, size_t> places;
    for (const RegionRow& row : rows) {
      std::string label = folded_label(row.totals.label);
      if (folded.size() == kMostLabels && places.count(label) == 0) label = "other labels";
      const auto [known, is_new] = places.emplace(label, folded.size());
      if (is_new) folded.emplace_back().totals.label = label;
      folded[known->second].add(row);
    }
    return folded;
  }

  Json regions() {
    Json all = Json::array();
    for (const RegionRow& row : region_rows()) {
      const RegionTotals& totals = row.totals;
      all.push_back({texts_.number_of(totals.label), totals.regions, totals.forward.ops,
                     totals.forward.ns, totals.replay.ops, totals.replay.ns, totals.slots,
                     totals.kept_slots, row.kept_bytes, row.peak_bytes});
    }
    return all;
  }

  /// A plan holds until the next plan with its label, or until the end.
  Json plans() {
    Json all = Json::array();
    std::map<StringId, size_t> next;  // indices into Recording::plans
    std::vector<TimeNs> ends(recording_.plans.size(), summary_.end_ns);
    for (size_t i = recording_.plans.size(); i > 0; --i) {
      const auto [known, is_new] = next.emplace(recording_.plans[i - 1].label, i - 1);
      if (!is_new) ends[i - 1] = recording_.plans[known->second].time_ns;
      known->second = i - 1;
    }
    for (size_t i = 0; i < std::min(recording_.plans.size(), kMostPlans); ++i) {
      const auto& plan = recording_.plans[i];
      const int64_t base = alive_at(plan.time_ns);
      all.push_back({plan.time_ns, ends[i], texts_.number_of(recording_.text(plan.label)),
                     plan.budget_bytes, plan.predicted_peak_bytes, plan.plain_peak_bytes, base,
                     most_of_steps(planned_steps(recording_, plan, ends[i]))});
    }
    return all;
  }

  /// The most bytes that a step added to those alive when it began.
  int64_t most_of_steps(const std::vector<std::pair<TimeNs, TimeNs>>& steps) const {
    int64_t most = 0;
    for (const auto& [begin_ns, end_ns] : steps)
      most = std::max(most, most_between(begin_ns, end_ns) - alive_at(begin_ns));
    return most;
  }

  int64_t alive_at(TimeNs time_ns) const {
    const size_t place = last_until(alive_, time_ns);
    return place == MemoryBlock::kNone ? 0 : alive_[place].total();
  }

  int64_t most_between(TimeNs begin, TimeNs end) const {
    int64_t most = alive_at(begin);
    const size_t before = last_until(alive_, begin);
    for (size_t i = before == MemoryBlock::kNone ? 0 : before; i < alive_.size(); ++i) {
      if (alive_[i].time_ns > end) break;
      most = std::max(most, alive_[i].total());
    }
    return most;
  }

  const Recording& recording_;
  ReportTexts texts_;
  const RegionLabels labels_;
  const RowMaker rows_;
  const std::vector<MemoryBlock> blocks_;
  const std::vector<AliveByKind> alive_;
  const RecordingSummary summary_;
  const size_t most_rows_;
  std::vector<size_t> moments_;  // indices into alive_
  size_t peak_event_ = MemoryBlock::kNone;
  size_t peak_ = MemoryBlock::kNone;  // index into moments_
};

}  // namespace

nlohmann::ordered_json report_data(const Recording& recording, const std::string& name,
                                   size_t most_points, size_t most_rows) {
  return DataOfRecording(recording, most_points, most_rows).run(name);
}

}  // namespace remat::detail
