// SPDX-License-Identifier: BSD-3-Clause

// The choice of values that move, see Note [Peaks with OFFLOAD].
#include "offload_moves.h"

#include <algorithm>

namespace remat::detail {

/// Moving a written storage would leave the program its memory and the engine a copy; a storage
/// that the program holds to the end stays in memory anyway.
bool OffloadMoves::may_move(int32_t value) const {
  const StepValue& of = graph_.profile.values[value];
  return !terms_.places.empty() && of.maker >= 0 && of.storage == value &&
         graph_.overwritten_by[value] == StepGraph::never && !graph_.is_programs(value) &&
         of.bytes > 0 && of.bytes >= terms_.min_bytes && units_.home(value) == StepUnits::root;
}

void OffloadMoves::choose(const std::vector<HeldValue>& kept_at_root,
                          const std::vector<char>& flags) {
  for (const int32_t v : put_) sent_at_[v] = never;
  put_.clear();
  taken_.assign(terms_.places.size(), 0);
  away_bytes_ = 0;
  for (const HeldValue& kept : kept_at_root) {
    if (flags[kept.value] == kMoved && may_move(kept.value)) put_.push_back(kept.value);
  }
  const auto by_maker = [&](int32_t a, int32_t b) {
    return std::pair(graph_.maker(a), a) < std::pair(graph_.maker(b), b);
  };
  std::sort(put_.begin(), put_.end(), by_maker);
  // Sorts values by when they are sent, which decides the memory that has room.
  std::vector<std::pair<int32_t, int32_t>> sent;
  for (const int32_t v : put_) {
    const int32_t held_until = graph_.profile.values[v].held_until;
    const auto next = std::find_if(put_.begin(), put_.end(),
                                   [&](int32_t other) { return graph_.maker(other) > held_until; });
    if (next != put_.end()) sent.emplace_back(graph_.maker(*next), v);
  }
  std::stable_sort(sent.begin(), sent.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [record, v] : sent) {
    if (take_room(graph_.bytes(v))) sent_at_[v] = record;
  }
}

bool OffloadMoves::take_room(int64_t bytes) {
  if (bytes > terms_.max_bytes - away_bytes_) return false;
  for (size_t i = 0; i < taken_.size(); ++i) {
    const OffloadPlace& place = terms_.places[i];
    const int64_t blocks = (bytes - 1) / place.block_bytes + 1;
    if (blocks > (place.max_bytes - taken_[i]) / place.block_bytes) continue;
    taken_[i] += blocks * place.block_bytes;
    away_bytes_ += bytes;
    return true;
  }
  return false;
}

int64_t OffloadMoves::leaving_bytes(int64_t sent_bytes) const {
  return std::min(sent_bytes, terms_.max_leaving_bytes);
}

int64_t OffloadMoves::moving_bytes(int64_t needed_bytes, int64_t ended_bytes) const {
  const int64_t lingering = leaving_bytes(ended_bytes);
  const int64_t on_the_way =
      leaving_bytes(needed_bytes + ended_bytes) + std::min(needed_bytes, terms_.prefetch_bytes);
  return std::min(needed_bytes + lingering, on_the_way);
}

}  // namespace remat::detail
