// SPDX-License-Identifier: BSD-3-Clause

#include "report_data.h"

#include <remat/recording/region_labels.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>

namespace remat::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostMarks = 500;
constexpr size_t kMostPlans = 500;
constexpr size_t kMostLabels = 1000;

/// Each value as the difference to the value before; the first value is stored unchanged.
Json differences(const std::vector<int64_t>& values) {
  Json all = Json::array();
  int64_t last = 0;
  for (const int64_t value : values) all.push_back(value - std::exchange(last, value));
  return all;
}

/// Adds to `chosen` the indices of the first minimum and the first maximum of each stretch. A
/// stretch is a run of indices for which stretch_of() returns one value.
template <class StretchOf>
void add_extremes_of(const std::vector<int64_t>& totals, StretchOf&& stretch_of,
                     std::vector<size_t>& chosen) {
  for (size_t begin = 0; begin < totals.size();) {
    size_t least = begin;
    size_t most = begin;
    size_t place = begin;
    for (; place < totals.size() && stretch_of(place) == stretch_of(begin); ++place) {
      if (totals[place] < totals[least]) least = place;
      if (totals[place] > totals[most]) most = place;
    }
    chosen.push_back(least);
    chosen.push_back(most);
    begin = place;
  }
}

/// Adds extremes of stretches of time (for the whole view) and of runs of events (for close views).
void add_extremes(const std::vector<AliveByKind>& alive, size_t stretches,
                  std::vector<size_t>& chosen) {
  std::vector<int64_t> totals;
  totals.reserve(alive.size());
  for (const AliveByKind& moment : alive) totals.push_back(moment.total());
  const auto begin = static_cast<double>(alive.front().time_ns);
  const double length = std::max(1.0, static_cast<double>(alive.back().time_ns) - begin);
  const auto stretch_of_time = [&](size_t i) {
    const double share = (static_cast<double>(alive[i].time_ns) - begin) / length;
    return static_cast<size_t>(share * static_cast<double>(stretches));
  };
  const size_t run = std::max<size_t>(1, (alive.size() + stretches - 1) / stretches);
  add_extremes_of(totals, stretch_of_time, chosen);
  add_extremes_of(
      totals, [run](size_t i) { return i / run; }, chosen);
}

/// Index of the last moment of `alive` at or before `time_ns`; kNone if there is none.
size_t last_until(const std::vector<AliveByKind>& alive, TimeNs time_ns) {
  const auto after = std::upper_bound(
      alive.begin(), alive.end(), time_ns,
      [](TimeNs time, const AliveByKind& moment) { return time < moment.time_ns; });
  return after == alive.begin() ? MemoryBlock::kNone
                                : static_cast<size_t>(after - alive.begin()) - 1;
}

/// Ascending indices into `alive`, at most about `most` of them: the first and the last, those at
/// each of `marks`, and the minimum and maximum in stretches of time and in runs of events. The
/// peak is the maximum of its stretch.
std::vector<size_t> shown_moments(const std::vector<AliveByKind>& alive,
                                  const std::vector<TimeNs>& marks, size_t most) {
  std::vector<size_t> chosen;
  if (alive.size() <= most) {
    chosen.resize(alive.size());
    std::iota(chosen.begin(), chosen.end(), size_t{0});
    return chosen;
  }
  add_extremes(alive, std::max<size_t>(1, most / 4), chosen);
  for (const TimeNs mark : marks) {
    if (const size_t place = last_until(alive, mark); place != MemoryBlock::kNone)
      chosen.push_back(place);
  }
  chosen.push_back(0);
  chosen.push_back(alive.size() - 1);
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

/// The time just before the first op on `thread` after `time_ns` that the program itself calls, not
/// backward or a replay. If there is none, the end of the thread's last op.
TimeNs next_op_of_program(const Recording& recording, uint32_t thread, TimeNs time_ns) {
  TimeNs last = time_ns;
  for (const auto& op : recording.ops) {
    if (op.thread != thread) continue;
    last = std::max(last, op.end_ns);
    const bool is_of_program = op.phase == OpPhase::kOutside || op.phase == OpPhase::kForward;
    if (op.begin_ns > time_ns && op.depth == 0 && is_of_program) return op.begin_ns - 1;
  }
  return last;
}

/// The steps on the plan's thread that began at `plan` or later and before `end_ns`, in order. Each
/// is a pair: the time when its region began, and the time when its backward pass ended, which is
/// taken from next_op_of_program(). If no region was recorded, the whole time counts as one step.
std::vector<std::pair<TimeNs, TimeNs>> planned_steps(const Recording& recording,
                                                     const OnThread<PlanEvent>& plan,
                                                     TimeNs end_ns) {
  const std::string& name = recording.text(plan.label);
  // Times of the first and the last event, by RegionEvent::whole, as an event may name a segment.
  std::map<uint64_t, std::pair<TimeNs, TimeNs>> steps;
  std::unordered_map<uint64_t, uint64_t> wholes;
  const auto note_event = [&](uint64_t whole, TimeNs time_ns) {
    TimeNs& last_ns = steps.try_emplace(whole, time_ns, time_ns).first->second.second;
    last_ns = std::max(last_ns, time_ns);
  };
  for (const auto& region : recording.regions) {
    const bool is_planned = region.thread == plan.thread && region.time_ns >= plan.time_ns &&
                            recording.text(region.label).find(name) != std::string::npos;
    if (!is_planned && steps.count(region.whole) == 0) continue;
    note_event(region.whole, region.time_ns);
    wholes.emplace(region.region, region.whole);
  }
  for (const auto& load : recording.loads) {
    const auto whole = wholes.find(load.region);
    if (whole != wholes.end()) note_event(whole->second, load.time_ns);
  }
  std::vector<std::pair<TimeNs, TimeNs>> planned;
  for (const auto& [whole, step] : steps) {
    const auto [begin_ns, last_ns] = step;
    if (begin_ns >= end_ns) continue;
    planned.emplace_back(begin_ns, next_op_of_program(recording, plan.thread, last_ns));
  }
  if (planned.empty()) planned.emplace_back(plan.time_ns, end_ns);
  return planned;
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

  /// The rows of blocks: "begin" is the first moment of each, "length" its number of moments.
  Json alive() {
    const std::vector<ReportRow> rows = rows_.rows_of(blocks_, moments_, peak_, most_rows_);
    std::map<BlockOrigin, size_t> numbers;
    Json origins = Json::array();
    std::vector<int64_t> begin;
    Json length = Json::array();
    Json origin = Json::array();
    Json bytes = Json::array();
    Json several = Json::array();  // index and number of blocks of each row of several blocks
    for (size_t i = 0; i < rows.size(); ++i) {
      const ReportRow& row = rows[i];
      begin.push_back(static_cast<int64_t>(row.begin));
      length.push_back(row.end - row.begin);
      const auto [number, is_new] = numbers.emplace(row.origin, numbers.size());
      if (is_new) origins.push_back(row.origin);
      origin.push_back(number->second);
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

    void add(const RegionTotals& other) {
      totals.regions += other.regions;
      totals.forward.ops += other.forward.ops;
      totals.forward.ns += other.forward.ns;
      totals.replay.ops += other.replay.ops;
      totals.replay.ns += other.replay.ns;
      totals.slots += other.slots;
      totals.kept_slots += other.kept_slots;
    }
  };

  /// One row per label. If there are too many, labels that differ only by numbers share a row. If
  /// there are still too many, the last ones share the row "other labels".
  std::vector<RegionRow> region_rows() const {
    const bool is_folded = summary_.regions.size() > kMostLabels;
    std::vector<RegionRow> rows;
    std::map<std::string, size_t> shown;     // rows by the label that they show
    std::map<std::string, size_t> by_label;  // rows by the label of a region
    for (const RegionTotals& totals : summary_.regions) {
      std::string label = is_folded ? folded_label(totals.label) : totals.label;
      if (rows.size() >= kMostLabels && shown.count(label) == 0) label = "other labels";
      const auto [known, is_new] = shown.emplace(label, rows.size());
      if (is_new) rows.emplace_back().totals.label = label;
      rows[known->second].add(totals);
      by_label.emplace(totals.label, known->second);
    }
    for (const MemoryBlock& block : blocks_) {
      const uint64_t region = rows_.region_of(block);
      const auto known = region == 0 ? by_label.end() : by_label.find(labels_.of(region));
      if (known == by_label.end()) continue;
      RegionRow& row = rows[known->second];
      if (peak_event_ != MemoryBlock::kNone && block.is_alive_after(peak_event_))
        row.peak_bytes += block.bytes;
      if (block.kind == BlockKind::kKept) row.kept_bytes += block.bytes;
    }
    return rows;
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
      int64_t most = 0;  // the most that a step added to the bytes alive at its begin
      for (const auto& [begin_ns, end_ns] : planned_steps(recording_, plan, ends[i]))
        most = std::max(most, most_between(begin_ns, end_ns) - alive_at(begin_ns));
      all.push_back({plan.time_ns, ends[i], texts_.number_of(recording_.text(plan.label)),
                     plan.budget_bytes, plan.predicted_peak_bytes, plan.plain_peak_bytes,
                     alive_at(plan.time_ns), most});
    }
    return all;
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
