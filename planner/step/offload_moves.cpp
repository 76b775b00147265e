// SPDX-License-Identifier: BSD-3-Clause

// Chooses the values that are offloaded, see Note [Peaks with OFFLOAD], and records their events.
#include "offload_moves.h"

#include <algorithm>

namespace remat::detail {

OffloadMoves::OffloadMoves(const StepGraph& graph, const StepUnits& units,
                           const OffloadTerms& terms)
    : graph_(graph),
      units_(units),
      terms_(terms),
      is_put_(graph.profile.values.size(), 0),
      sent_at_(graph.profile.values.size(), never) {}

/// False for an overwritten storage, because the program still has its memory, so offloading would
/// free nothing. False for a storage that the program holds to the end.
bool OffloadMoves::may_move(int32_t value) const {
  const StepValue& of = graph_.profile.values[value];
  return !terms_.places.empty() && of.maker >= 0 && of.storage == value &&
         graph_.overwritten_by[value] == StepGraph::never && !graph_.is_programs(value) &&
         of.bytes > 0 && of.bytes >= terms_.min_bytes && units_.home(value) == StepUnits::root;
}

void OffloadMoves::begin(const std::vector<HeldValue>& kept_at_root,
                         const std::vector<char>& flags) {
  for (const int32_t v : put_) {
    sent_at_[v] = never;
    is_put_[v] = 0;
  }
  put_.clear();
  steps_.clear();
  needed_bytes_ = 0;
  for (const HeldValue& kept : kept_at_root) {
    if (flags[kept.value] == kMoved && may_move(kept.value)) put_.push_back(kept.value);
  }
  if (put_.empty()) return;
  for (const int32_t v : put_) is_put_[v] = 1;
  std::sort(put_.begin(), put_.end(), [&](int32_t a, int32_t b) {
    return std::pair(graph_.maker(a), a) < std::pair(graph_.maker(b), b);
  });
  needed_until_.assign(graph_.profile.nodes.size() + 1, 0);
  dropped_by_.assign(graph_.profile.nodes.size() + 1, {});
  choose_sent();
  pass_forward();
}

/// Chooses the place of each value in the order of sending, because that order decides which place
/// still has room for a value.
void OffloadMoves::choose_sent() {
  std::vector<std::pair<int32_t, int32_t>> sent;
  for (const int32_t v : put_) {
    const int32_t held_until = graph_.profile.values[v].held_until;
    const auto next = std::find_if(put_.begin(), put_.end(),
                                   [&](int32_t other) { return graph_.maker(other) > held_until; });
    if (next != put_.end()) sent.emplace_back(graph_.maker(*next), v);
  }
  std::stable_sort(sent.begin(), sent.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t away_bytes = 0;
  std::vector<int64_t> taken(terms_.places.size(), 0);  // per place: bytes of the blocks taken
  for (const auto& [record, v] : sent) {
    const int64_t bytes = graph_.bytes(v);
    if (bytes > terms_.max_bytes - away_bytes) continue;
    for (size_t i = 0; i < taken.size() && !leaves(v); ++i) {
      const OffloadPlace& place = terms_.places[i];
      const int64_t blocks = (bytes - 1) / place.block_bytes + 1;
      if (blocks > (place.max_bytes - taken[i]) / place.block_bytes) continue;
      taken[i] += blocks * place.block_bytes;
      away_bytes += bytes;
      sent_at_[v] = record;
    }
  }
}

/// Records when values are put, and when the program drops them.
void OffloadMoves::pass_forward() {
  const std::vector<StepRecord>& records = graph_.profile.records;
  std::vector<std::vector<int32_t>> alone(records.size() + 1);
  for (const int32_t v : put_) alone[graph_.profile.values[v].held_until + 1].push_back(v);
  auto next = put_.begin();
  const double other_us = graph_.profile.other_us / std::max<double>(1, graph_.size());
  for (int32_t j = 0; j < graph_.size(); ++j) {
    for (const int32_t v : alone[j]) steps_.push_back({CopyStep::Kind::kAlone, v, 0});
    compute(records[j].forward_us + other_us);
    for (; next != put_.end() && graph_.maker(*next) == j; ++next)
      steps_.push_back({CopyStep::Kind::kPut, *next, 0});
  }
  for (const int32_t v : alone.back()) steps_.push_back({CopyStep::Kind::kAlone, v, 0});
}

void OffloadMoves::need(const HeldValue& value) {
  needed_bytes_ += graph_.bytes(value.value);
  needed_until_[value.until] += graph_.bytes(value.value);
}

void OffloadMoves::compute(double us) {
  if (put_.empty()) return;
  if (steps_.empty() || steps_.back().kind != CopyStep::Kind::kCompute)
    steps_.push_back({CopyStep::Kind::kCompute, -1, 0});
  steps_.back().us += us;
}

void OffloadMoves::end_node(size_t node) {
  if (put_.empty()) return;
  compute(graph_.profile.nodes[node].us);
  needed_bytes_ -= needed_until_[node];
  for (const int32_t v : dropped_by_[node]) drop(v);
}

int64_t OffloadMoves::leaving_bytes(int64_t sent_bytes) const {
  return std::min(sent_bytes, terms_.max_leaving_bytes);
}

int64_t OffloadMoves::moving_bytes(int64_t sent_bytes) const {
  const int64_t lingering = leaving_bytes(sent_bytes - needed_bytes_);
  const int64_t on_the_way =
      leaving_bytes(sent_bytes) + std::min(needed_bytes_, terms_.prefetch_bytes);
  return std::min(needed_bytes_ + lingering, on_the_way);
}

double OffloadMoves::waited_us() const {
  if (put_.empty()) return 0;
  std::vector<int64_t> bytes;
  for (const StepValue& value : graph_.profile.values) bytes.push_back(value.bytes);
  return CopyTimeline(terms_, bytes).run(steps_).waited_us;
}

}  // namespace remat::detail
