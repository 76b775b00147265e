// SPDX-License-Identifier: BSD-3-Clause

// Pins long-lived storages until positions crossed by a single value are close enough. Then takes
// positions that look alike, so that the regions between them are alike, too.
#include "cut_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace remat::detail {

namespace {

constexpr int32_t short_span = 6;    // in records; a gap or value this short is left alone
constexpr double most_pinned = 0.4;  // share of all bytes that the step makes
constexpr size_t pins_tried = 12;
constexpr int most_splits = 40;

using Gap = std::pair<int32_t, int32_t>;  // a record, and the record after the last

class CutChooser {
 public:
  CutChooser(const StepGraph& graph, const ValueSpans& spans, double most_share, double least_share)
      : graph_(graph),
        spans_(spans),
        most_share_(most_share),
        least_share_(least_share),
        large_(spans.crossing) {
    chosen_.pinned.assign(graph.profile.values.size(), 0);
    for (size_t s = 0; s < chosen_.pinned.size(); ++s) {
      const auto storage = static_cast<int32_t>(s);
      if (!spans.is_inner(storage) || graph.bytes(storage) >= spans.small_bytes) continue;
      if (spans.saved[s] || spans.length(storage) > short_span) chosen_.pinned[s] = 1;
    }
    for (std::vector<int32_t>& storages : large_) {
      const auto is_small = [&](int32_t s) { return graph.bytes(s) < spans.small_bytes; };
      storages.erase(std::remove_if(storages.begin(), storages.end(), is_small), storages.end());
    }
  }

  StepRegions run() {
    while (pin_one()) {
    }
    const std::vector<int32_t> places = separators();
    take_alike(places);
    split_heavy(places);
    finish();
    return chosen_;
  }

 private:
  int64_t weight(const Gap& gap) const { return weight(gap.first, gap.second); }
  int64_t weight(int32_t begin, int32_t end) const {
    return spans_.made_before[end] - spans_.made_before[begin];
  }
  int64_t total() const { return spans_.total_bytes(); }
  double share(int64_t bytes) const {
    return total() == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(total());
  }
  /// True if at most one large value passes, and no later write would make a cut copy the value.
  bool separates(int32_t p) const {
    return large_[p].size() <= 1 &&
           std::none_of(large_[p].begin(), large_[p].end(),
                        [&](int32_t s) { return spans_.last_write[s] >= p; });
  }
  int32_t passing(int32_t p) const { return large_[p].empty() ? -1 : large_[p].front(); }

  std::vector<int32_t> separators() const {
    std::vector<int32_t> places;
    for (int32_t p = 1; p < graph_.size(); ++p) {
      if (separates(p)) places.push_back(p);
    }
    return places;
  }

  std::vector<Gap> gaps(const std::vector<int32_t>& cuts) const {
    std::vector<Gap> all;
    int32_t begin = 0;
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const int32_t end = i < cuts.size() ? cuts[i] : graph_.size();
      all.emplace_back(begin, end);
      begin = end;
    }
    return all;
  }
  Gap heaviest(const std::vector<int32_t>& cuts) const {
    const std::vector<Gap> all = gaps(cuts);
    return *std::max_element(all.begin(), all.end(),
                             [&](const Gap& a, const Gap& b) { return weight(a) < weight(b); });
  }

  /// In the heaviest gap between separators, pins the value whose removal divides the gap best.
  /// Returns false when no gap is too heavy, no pin helps, or too many bytes are pinned.
  bool pin_one() {
    const Gap gap = heaviest(separators());
    if (share(weight(gap)) <= most_share_ || gap.second - gap.first < short_span) return false;
    std::map<int32_t, int32_t> counts;
    for (int32_t p = gap.first + 1; p < gap.second; ++p) {
      for (const int32_t s : large_[p]) ++counts[s];
    }
    std::vector<std::pair<int32_t, int32_t>> most;  // count, storage
    for (const auto& [s, count] : counts) most.emplace_back(-count, s);
    std::sort(most.begin(), most.end());
    std::optional<std::tuple<double, int32_t, int32_t>> best;
    for (size_t i = 0; i < std::min(most.size(), pins_tried) && -most[i].first >= 3; ++i) {
      const int32_t s = most[i].second;
      const double score = static_cast<double>(weight(gap) - heaviest_without(gap, s)) /
                           static_cast<double>(graph_.bytes(s) + spans_.small_bytes + 1);
      const std::tuple candidate(score, -most[i].first, s);
      if (!best ||
          std::pair(score, -most[i].first) > std::pair(std::get<0>(*best), std::get<1>(*best)))
        best = candidate;
    }
    if (!best) return false;
    pin(std::get<2>(*best));
    return share(pinned_bytes_) <= most_pinned;
  }

  int64_t heaviest_without(const Gap& gap, int32_t storage) const {
    int64_t most = 0;
    int32_t begin = gap.first;
    for (int32_t p = gap.first + 1; p <= gap.second; ++p) {
      const auto others = std::count_if(large_[p].begin(), large_[p].end(),
                                        [&](int32_t s) { return s != storage; });
      if (p < gap.second && others > 1) continue;
      most = std::max(most, weight(begin, p));
      begin = p;
    }
    return most;
  }

  void pin(int32_t storage) {
    chosen_.pinned[storage] = 1;
    pinned_bytes_ += graph_.bytes(storage);
    for (std::vector<int32_t>& storages : large_)
      storages.erase(std::remove(storages.begin(), storages.end(), storage), storages.end());
  }

  using Look = std::tuple<uint64_t, uint64_t, int64_t>;
  Look look(int32_t p) const {
    const auto kind = [&](int32_t j) {
      const uint64_t known = graph_.profile.records[j].kind;
      return known != 0 ? known : ~static_cast<uint64_t>(j);
    };
    return {kind(p - 1), kind(p), large_[p].empty() ? 0 : graph_.bytes(passing(p))};
  }

  /// Takes sets of positions that look alike, the most frequent first, if regions get smaller.
  void take_alike(const std::vector<int32_t>& places) {
    std::map<Look, std::vector<int32_t>> by_look;
    for (const int32_t p : places) by_look[look(p)].push_back(p);
    std::vector<std::vector<int32_t>> looks;
    for (auto& [key, alike] : by_look) looks.push_back(std::move(alike));
    const auto order = [&](const std::vector<int32_t>& alike) {
      const int32_t s = passing(alike.front());
      return std::tuple(-static_cast<int64_t>(alike.size()), s < 0 ? 0 : graph_.bytes(s),
                        -alike.front());
    };
    std::sort(looks.begin(), looks.end(),
              [&](const auto& a, const auto& b) { return order(a) < order(b); });
    for (const std::vector<int32_t>& alike : looks) {
      if (alike.size() < 2) break;
      for (size_t stride = 1; alike.size() >= 2 * stride && !try_every(stride, alike);) stride *= 2;
    }
  }

  /// Tries cuts at every stride-th position of `alike`. In deep models, all cuts would be too many.
  bool try_every(size_t stride, const std::vector<int32_t>& alike) {
    std::vector<int32_t> trial = chosen_.positions;
    for (size_t i = stride - 1; i < alike.size(); i += stride) trial.push_back(alike[i]);
    std::sort(trial.begin(), trial.end());
    const bool better = is_better(trial);
    if (better) chosen_.positions = trial;
    return better;
  }

  bool is_better(const std::vector<int32_t>& trial) const {
    for (size_t i = 1; i < trial.size(); ++i) {
      const int32_t s = passing(trial[i]);
      if (s >= 0 && s == passing(trial[i - 1])) return false;
    }
    const std::vector<Gap> all = gaps(trial);
    const auto heavy = std::count_if(
        all.begin(), all.end(), [&](const Gap& gap) { return share(weight(gap)) >= least_share_; });
    if (static_cast<double>(heavy) < 0.9 * static_cast<double>(all.size())) return false;
    return chosen_.positions.empty() ||
           static_cast<double>(weight(heaviest(trial))) <
               0.999 * static_cast<double>(weight(heaviest(chosen_.positions)));
  }

  void split_heavy(const std::vector<int32_t>& places) {
    for (int i = 0; i < most_splits; ++i) {
      const Gap gap = heaviest(chosen_.positions);
      if (share(weight(gap)) < most_share_) return;
      std::optional<std::tuple<int64_t, int64_t, int32_t>> best;
      for (const int32_t p : places) {
        if (p <= gap.first || p >= gap.second || !divides(gap, p)) continue;
        const int32_t s = passing(p);
        const std::tuple candidate(s < 0 ? 0 : graph_.bytes(s),
                                   std::abs(2 * weight(gap.first, p) - weight(gap)), p);
        if (!best || candidate < *best) best = candidate;
      }
      if (!best) return;
      chosen_.positions.push_back(std::get<2>(*best));
      std::sort(chosen_.positions.begin(), chosen_.positions.end());
    }
  }

  bool divides(const Gap& gap, int32_t p) const {
    const int32_t s = passing(p);
    const bool passes_on = s >= 0 && ((gap.first > 0 && s == passing(gap.first)) ||
                                      (gap.second < graph_.size() && s == passing(gap.second)));
    return !passes_on && 4 * std::min(weight(gap.first, p), weight(p, gap.second)) >= weight(gap);
  }

  /// Pins every storage that crosses a cut but is no region's output.
  void finish() {
    int32_t begin = 0;
    for (const int32_t p : chosen_.positions) {
      int32_t s = passing(p);
      if (s >= 0 && spans_.first[s] < begin) {
        chosen_.pinned[s] = 1;
        s = -1;
      }
      chosen_.passing.push_back(s);
      for (const int32_t other : spans_.crossing[p]) {
        if (other != s) chosen_.pinned[other] = 1;
      }
      begin = p;
    }
    for (int32_t& s : chosen_.passing) {
      if (s >= 0 && chosen_.pinned[s]) s = -1;
    }
  }

  const StepGraph& graph_;
  const ValueSpans& spans_;
  double most_share_;
  double least_share_;
  std::vector<std::vector<int32_t>> large_;  // per position: unpinned large storages that pass
  int64_t pinned_bytes_ = 0;
  StepRegions chosen_;
};

}  // namespace

StepRegions choose_regions(const StepGraph& graph, const ValueSpans& spans, double most_share,
                           double least_share) {
  return CutChooser(graph, spans, most_share, least_share).run();
}

ValueSpans::ValueSpans(const StepGraph& graph)
    : first(graph.profile.values.size(), -1),
      last_use(graph.profile.values.size(), -1),
      last_write(graph.profile.values.size(), -1),
      saved(graph.profile.values.size(), 0),
      crossing(graph.profile.records.size() + 1),
      made_before(graph.profile.records.size() + 1, 0) {
  const std::vector<StepValue>& values = graph.profile.values;
  for (size_t v = 0; v < values.size(); ++v) {
    const int32_t storage = values[v].storage;
    if (values[storage].maker < 0 || values[storage].bytes == 0) continue;
    const int32_t made = values[v].maker;
    const int32_t last = graph.uses[v].empty() ? made : std::max(made, graph.uses[v].back());
    first[storage] = values[storage].maker;
    last_use[storage] = std::max(last_use[storage], last);
    if (static_cast<size_t>(storage) != v)
      last_write[storage] = std::max(last_write[storage], made);
    for (int32_t p = made + 1; p <= last; ++p) {
      if (crossing[p].empty() || crossing[p].back() != storage) crossing[p].push_back(storage);
    }
  }
  for (std::vector<int32_t>& storages : crossing) {
    std::sort(storages.begin(), storages.end());
    storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
  }
  for (const StepSlot& slot : graph.profile.slots) {
    if (slot.value >= 0 && !slot.is_dropped()) saved[values[slot.value].storage] = 1;
  }
  for (size_t v = 0; v < values.size(); ++v) {
    if (is_inner(static_cast<int32_t>(v))) made_before[first[v] + 1] += values[v].bytes;
  }
  for (size_t j = 1; j < made_before.size(); ++j) made_before[j] += made_before[j - 1];
  small_bytes = find_small_bytes(graph);
}

/// The least size of large values. Small values are at most 0.15 % of the total each, and 1 % all
/// together. The first limit alone would not do, because in deep models every value is a small
/// share.
int64_t ValueSpans::find_small_bytes(const StepGraph& graph) const {
  std::vector<int64_t> sizes;
  for (size_t v = 0; v < last_use.size(); ++v) {
    if (is_inner(static_cast<int32_t>(v))) sizes.push_back(graph.bytes(static_cast<int32_t>(v)));
  }
  std::sort(sizes.begin(), sizes.end());
  int64_t sum = 0;
  for (const int64_t bytes : sizes) {
    sum += bytes;
    if (sum > total_bytes() / 100 || bytes > total_bytes() * 15 / 10000) return bytes;
  }
  return 0;
}

}  // namespace remat::detail
