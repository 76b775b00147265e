// SPDX-License-Identifier: BSD-3-Clause

// Windows, options that move tensors, and the choice by replay.
#include "offload_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace remat::detail {

namespace {

constexpr size_t max_moved_tensors = 10;  // Of one option, the largest; 2^10 subsets are tried.
// Windows in terms of what the link moves during a mean forward: 0.2 to 4.5.
constexpr double first_window = 0.2;
constexpr double window_growth = 1.25;
constexpr int window_count = 15;
constexpr size_t breakpoints = 1000;  // Of a part. The replay decides, so these need not be all.
constexpr int64_t levels = 160;       // Budgets whose plans are replayed, per window

struct Move {
  int64_t bytes = 0;
  Ticks penalty = 0;
  std::vector<int> tensors;
};

/// Subsets of the kept tensors that no other beats in bytes and penalty.
std::vector<Move> moves_of(const Block& block, const Option& option, const OffloadRoom& room) {
  const std::vector<char> kept = kept_tensors(block, option.rerun);
  std::vector<int> movable;
  for (size_t t = 0; t < kept.size(); ++t) {
    if (kept[t] && block.tensors[t].bytes > 0 && block.tensors[t].bytes <= room.bytes)
      movable.push_back(static_cast<int>(t));
  }
  std::stable_sort(movable.begin(), movable.end(),
                   [&](int a, int b) { return block.tensors[a].bytes > block.tensors[b].bytes; });
  if (movable.size() > max_moved_tensors) movable.resize(max_moved_tensors);
  std::vector<Move> moves;
  for (uint32_t mask = 1; mask < (uint32_t{1} << movable.size()); ++mask) {
    Move move;
    for (size_t i = 0; i < movable.size(); ++i) {
      if ((mask >> i & 1U) == 0) continue;
      move.bytes += block.tensors[movable[i]].bytes;
      move.tensors.push_back(movable[i]);
    }
    if (move.bytes > room.bytes) continue;
    const Ticks copy =
        static_cast<Ticks>(std::ceil(static_cast<double>(move.bytes) * room.ticks_per_byte));
    move.penalty = std::max<Ticks>(0, copy - room.forward) +
                   std::max<Ticks>(0, copy - room.backward - option.time);
    moves.push_back(std::move(move));
  }
  // By falling bytes; a smaller move must be cheaper.
  std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tensors.size() < b.tensors.size();
  });
  std::vector<Move> best;
  for (Move& move : moves) {
    if (best.empty() || move.penalty < best.back().penalty) best.push_back(std::move(move));
  }
  return best;
}

/// Each type moves what its own time hides; or one type moves what the time between two of its
/// regions hides.
std::vector<std::vector<OffloadRoom>> families_of(const ChainModel& model) {
  std::vector<size_t> uses(model.types.size(), 0);
  Ticks forward = 0;
  Ticks backward = 0;
  for (const int type : model.chain) {
    ++uses[type];
    forward += model.types[type].fwd;
    backward += model.types[type].bwd;
  }
  std::vector<std::vector<OffloadRoom>> families(1);
  for (const Block& block : model.types)
    families[0].push_back({0, model.link_ticks_per_byte, block.fwd, block.bwd});
  for (size_t type = 0; type < uses.size(); ++type) {
    if (uses[type] < 2) continue;
    std::vector<OffloadRoom> family = families[0];
    for (size_t other = 0; other < uses.size(); ++other) {
      if (uses[other] > 0) family[other].ticks_per_byte = 0;  // Moves nothing.
    }
    const Ticks count = static_cast<Ticks>(uses[type]);
    family[type] = {0, model.link_ticks_per_byte, forward / count, backward / count};
    families.push_back(std::move(family));
  }
  return families;
}

}  // namespace

std::vector<Option> with_offload(const Block& block, const std::vector<Option>& options,
                                 const OffloadRoom& room) {
  std::vector<Option> all = options;
  for (const Option& option : options) {
    for (const Move& move : moves_of(block, option, room)) {
      Option moved = option;
      moved.time += move.penalty;
      moved.kept -= move.bytes;
      moved.offloaded = move.tensors;
      // The tensor needed first comes first.
      std::stable_sort(moved.offloaded.begin(), moved.offloaded.end());
      all.push_back(std::move(moved));
    }
  }
  // Those that move nothing stay: where nothing follows, there are no others.
  std::vector<Option> best = options;
  for (Option& option : pareto_filter(std::move(all))) {
    if (!option.offloaded.empty()) best.push_back(std::move(option));
  }
  return best;
}

OffloadSearch::OffloadSearch(const ChainModel& model, const SolverOptions& options) {
  const std::vector<std::vector<OffloadRoom>> families = families_of(model);
  Ticks forward = 0;
  for (const int type : model.chain) forward += model.types[type].fwd;
  const double mean = static_cast<double>(forward) / static_cast<double>(model.length()) /
                      model.link_ticks_per_byte;
  double done = 0;
  const double windows = static_cast<double>(families.size()) * window_count;
  for (const std::vector<OffloadRoom>& family : families) {
    double bytes = mean * first_window;
    for (int i = 0; i < window_count; ++i, bytes *= window_growth) {
      SolverOptions part = options;
      part.max_breakpoints = options.max_breakpoints == 0
                                 ? breakpoints
                                 : std::min(options.max_breakpoints, breakpoints);
      if (options.progress) {
        part.progress = [&](double part_done) { options.progress((done + part_done) / windows); };
      }
      try_window(model, family, std::llround(bytes), part);
      ++done;
    }
  }
}

void OffloadSearch::try_window(const ChainModel& model, std::vector<OffloadRoom> family,
                               int64_t bytes, const SolverOptions& options) {
  ChainModel extended_model = model;
  for (size_t type = 0; type < model.types.size(); ++type) {
    if (family[type].ticks_per_byte == 0) continue;
    family[type].bytes = bytes;
    std::vector<Option>& extended = extended_model.options[type];
    extended = with_offload(model.types[type], extended, family[type]);
  }
  const SequenceSolver solver(extended_model, options);
  const StepFunction& whole = solver.whole();
  const Step* tried = nullptr;
  for (int64_t i = 0; i <= levels; ++i) {
    const Step* at = step_at(
        whole, whole.front().bytes + (whole.back().bytes - whole.front().bytes) * i / levels);
    if (at == tried) continue;
    tried = at;
    Schedule schedule = extract_schedule(solver, at->bytes);
    const Simulation simulation = simulate(extended_model, schedule);
    add({simulation.peak, simulation.time, std::move(schedule)});
  }
}

void OffloadSearch::add(OffloadPlan plan) {
  // Peaks rise, times fall.
  auto at = std::partition_point(plans_.begin(), plans_.end(),
                                 [&](const OffloadPlan& other) { return other.peak <= plan.peak; });
  if (at != plans_.begin() && (at - 1)->time <= plan.time) return;
  if (at != plans_.begin() && (at - 1)->peak == plan.peak) --at;
  const auto beaten = std::partition_point(
      at, plans_.end(), [&](const OffloadPlan& other) { return other.time >= plan.time; });
  at = plans_.erase(at, beaten);
  plans_.insert(at, std::move(plan));
}

int64_t OffloadSearch::least_budget_bytes() const {
  return plans_.empty() ? std::numeric_limits<int64_t>::max() : plans_.front().peak;
}

const OffloadPlan* OffloadSearch::best(int64_t budget_bytes) const {
  const auto after =
      std::partition_point(plans_.begin(), plans_.end(),
                           [&](const OffloadPlan& plan) { return plan.peak <= budget_bytes; });
  return after == plans_.begin() ? nullptr : &*(after - 1);
}

}  // namespace remat::detail
