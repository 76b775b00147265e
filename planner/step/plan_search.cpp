// SPDX-License-Identifier: BSD-3-Clause

// Takes proposals of the chain planner over its whole frontier, then searches around them over a
// grid of budgets. Limits count simulations, not seconds, so equal profiles give equal plans.
#include "plan_search.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include <remat/planner/schedule.h>
#include <remat/planner/sequence_solver.h>

namespace remat::detail {

namespace {

constexpr int32_t chain_budgets = 256;
constexpr int exact_ops = 13;
/// Fine shares suit small budgets; coarse ones suit steps that are better planned in large regions.
constexpr std::array<std::pair<double, double>, 3> region_shares = {
    {{0.06, 0.006}, {0.12, 0.03}, {0.25, 0.06}}};  // most_share and least_share of choose_regions()
constexpr int32_t small_step = 300;  // in records; larger steps use two chains, to save time
constexpr size_t most_moved_candidates = 128;
constexpr size_t moved_shares = 8;
constexpr size_t exact_regions = 100;  // Solving takes time with the third power of the regions.
constexpr size_t thinned_breakpoints = 1000;

/// Returns budgets spread evenly over the bytes, with more in the least quarter, where plans change
/// most. Only the least of the budgets that have equal plans is returned.
std::vector<int64_t> budgets_of(const StepFunction& times) {
  const int64_t least = times.front().bytes;
  const int64_t range = times.back().bytes - least;
  std::vector<int64_t> budgets;
  for (int32_t i = 0; i <= chain_budgets / 2; ++i) {
    budgets.push_back(least + range * i / (chain_budgets / 2));
    budgets.push_back(least + range * i / (chain_budgets * 2));
  }
  std::sort(budgets.begin(), budgets.end());
  std::vector<int64_t> points;
  for (const int64_t budget : budgets) {
    const int64_t point = step_at(times, budget)->bytes;
    if (points.empty() || points.back() != point) points.push_back(point);
  }
  return points;
}

double more_us(const StepSimulation& result) {
  return result.rerun_us + result.waited_us;
}

void erase(std::vector<int32_t>& values, int32_t value) {
  values.erase(std::remove(values.begin(), values.end(), value), values.end());
}

std::vector<int32_t> by_score(std::vector<std::pair<double, int32_t>> scored) {
  std::sort(scored.begin(), scored.end());
  std::vector<int32_t> values;
  for (const auto& [score, v] : scored) values.push_back(v);
  return values;
}

/// Adds the halves of the segments as groups, the halves of these, and so on: O(log n) levels.
void add_halves(int32_t first, int32_t end, StepGroups& groups) {
  if (end - first < 3) return;
  const int32_t middle = first + (end - first) / 2;
  if (middle - first >= 2) groups.emplace_back(first, middle);
  if (end - middle >= 2) groups.emplace_back(middle, end);
  add_halves(first, middle, groups);
  add_halves(middle, end, groups);
}

}  // namespace

void PlanSearch::run() {
  try_whole();
  std::set<std::vector<int32_t>> tried;
  for (const auto& [most, least] : region_shares) {
    if (tried.size() > 1 && graph_.size() > small_step) break;
    const StepRegions regions = choose_regions(graph_, spans_, most, least);
    if (tried.insert(regions.positions).second) try_chain(regions);
  }
  refine(options_.evaluations);
  if (options_.offload.places.empty()) return;
  try_moves();
  refine(evaluations_ + options_.evaluations);
}

/// Tries one segment that keeps all or nothing.
void PlanSearch::try_whole() {
  const size_t values = graph_.profile.values.size();
  evaluate({}, std::vector<char>(values, 1));
  evaluate({}, std::vector<char>(values, 0));
}

/// Tries regions that keep only the pinned values, then regions that keep none, each time first
/// without groups and then within groups.
void PlanSearch::try_regions(const StepRegions& regions) {
  std::vector<char> keep(graph_.profile.values.size(), kNotKept);
  for (size_t v = 0; v < keep.size(); ++v)
    keep[v] = regions.pinned[graph_.profile.values[v].storage];
  StepGroups groups;
  add_halves(0, static_cast<int32_t>(regions.positions.size()) + 1, groups);
  for (const std::vector<char>& kept : {keep, std::vector<char>(keep.size(), 0)}) {
    evaluate({regions.positions, {}}, kept);
    evaluate({regions.positions, groups}, kept);
  }
}

void PlanSearch::try_chain(const StepRegions& regions) {
  try_regions(regions);
  const StepChain chain(graph_, spans_, regions);
  if (!chain.is_plannable()) return;
  const Chain split = split_chain(chain.chain, split_above);
  const ChainModel model(split, exact_ops);
  const size_t breakpoints = chain.regions.size() > exact_regions ? thinned_breakpoints : 0;
  const SequenceSolver solver(model, breakpoints);
  for (const int64_t budget : budgets_of(solver.whole())) {
    const auto [places, keep] =
        to_cuts(graph_, chain, regions, split, extract_schedule(solver, budget));
    evaluate(places, keep);
  }
}

/// Tries offloading more and more of the kept values. Those of the earliest records come first,
/// because they are away longest, so their copies have most time.
void PlanSearch::try_moves() {
  std::vector<CutCandidate> candidates;
  for (const auto& [peak, candidate] : found_) candidates.push_back(candidate);
  const size_t step = 1 + candidates.size() / most_moved_candidates;
  for (size_t i = 0; i < candidates.size(); i += step) {
    const CutCandidate& from = candidates[i];
    const std::vector<int32_t> values = movable(from);
    std::vector<char> keep = flags(from);
    size_t moved = 0;
    for (size_t share = 1; share <= moved_shares; ++share) {
      const size_t end = values.size() * share / moved_shares;
      if (end == moved) continue;
      for (; moved < end; ++moved) keep[values[moved]] = kMoved;
      evaluate(*from.places, keep);
    }
  }
}

/// The kept values that may move, in the order in which they are made.
std::vector<int32_t> PlanSearch::movable(const CutCandidate& from) {
  StepSimulator& judge = simulator(*from.places);
  std::vector<int32_t> values;
  std::copy_if(from.kept.begin(), from.kept.end(), std::back_inserter(values),
               [&](int32_t v) { return judge.may_move(v); });
  std::sort(values.begin(), values.end(), [&](int32_t a, int32_t b) {
    return std::pair(graph_.maker(a), a) < std::pair(graph_.maker(b), b);
  });
  return values;
}

/// Changes kept values for a grid of budgets. Stops after `evaluations` simulations in all.
void PlanSearch::refine(int64_t evaluations) {
  const int64_t least = found_.begin()->first;
  const int64_t most = found_.rbegin()->first;
  const int64_t start = evaluations_;
  const int64_t rounds = 2 * int64_t{options_.grid};
  for (int64_t i = 0; i < rounds; ++i) {
    const int64_t budget = least + (most - least) * (i / 2 + 1) / (options_.grid + 1);
    const int64_t until = start + (evaluations - start) * (i + 1) / rounds;
    if (i % 2 == 0) {
      drop_to(budget, until);
    } else {
      fill(budget, until);
    }
  }
}

/// Keeps more values in the fastest plan within the budget.
void PlanSearch::fill(int64_t budget_bytes, int64_t until_evaluations) {
  CutCandidate current = *best(budget_bytes);
  for (bool changed = true; changed && evaluations_ < until_evaluations;) {
    changed = false;
    for (const int32_t v : worth_adding(current)) {
      if (evaluations_ >= until_evaluations) return;
      const bool is_better =
          try_adding(current, v, kKept, budget_bytes) ||
          (simulator(*current.places).may_move(v) && try_adding(current, v, kMoved, budget_bytes));
      if (!is_better) continue;
      current = *best(budget_bytes);
      changed = true;
    }
  }
}

bool PlanSearch::try_adding(const CutCandidate& to, int32_t value, KeepFlag flag,
                            int64_t budget_bytes) {
  std::vector<char> keep = flags(to);
  keep[value] = flag;
  const StepSimulation& result = evaluate(*to.places, std::move(keep));
  return result.peak_bytes <= budget_bytes && more_us(result) < to.more_us;
}

/// Keeps fewer values in a plan that slightly exceeds the budget.
void PlanSearch::drop_to(int64_t budget_bytes, int64_t until_evaluations) {
  const auto above = found_.upper_bound(budget_bytes);
  if (above == found_.end()) return;
  CutCandidate current = above->second;
  int64_t peak = above->first;
  for (const int32_t v : worth_dropping(current)) {
    if (evaluations_ >= until_evaluations || peak <= budget_bytes) return;
    std::vector<char> keep = flags(current);
    keep[v] = kNotKept;
    const StepSimulation& result = evaluate(*current.places, keep);
    if (result.peak_bytes >= peak) continue;
    peak = result.peak_bytes;
    erase(current.kept, v);
    erase(current.moved, v);
  }
}

/// Recomputed values, sorted by time saved per byte, largest first.
std::vector<int32_t> PlanSearch::worth_adding(const CutCandidate& from) {
  std::vector<char> keep = flags(from);
  const StepSimulation& result = simulator(*from.places).run(keep, MissingValues::kRefuse);
  std::vector<std::pair<double, int32_t>> scored;
  for (size_t i = 0; i < graph_.profile.values.size(); ++i) {
    const auto v = static_cast<int32_t>(i);
    const int32_t maker = graph_.maker(v);
    if (maker < 0 || graph_.uses[v].empty() || result.runs[maker] == 0) continue;
    if (std::binary_search(from.kept.begin(), from.kept.end(), v)) continue;
    const double saved = graph_.profile.records[maker].replay_us * result.runs[maker];
    scored.emplace_back(-saved / static_cast<double>(graph_.bytes(v) + 1), v);
  }
  return by_score(std::move(scored));
}

std::vector<int32_t> PlanSearch::worth_dropping(const CutCandidate& from) const {
  std::vector<std::pair<double, int32_t>> scored;
  for (const int32_t v : from.kept) {
    const double lost = graph_.profile.records[graph_.maker(v)].replay_us;
    scored.emplace_back(lost / static_cast<double>(graph_.bytes(v) + 1), v);
  }
  return by_score(std::move(scored));
}

const CutCandidate* PlanSearch::best(int64_t budget_bytes) const {
  const auto above = found_.upper_bound(budget_bytes);
  return above == found_.begin() ? nullptr : &std::prev(above)->second;
}

/// Reuses the simulator while `places` stay the same, as they do for most of a search.
StepSimulator& PlanSearch::simulator(const CutPlaces& places) {
  const CutPlaces* const known = &*places_.insert(places).first;
  if (simulated_ != known) {
    simulator_ =
        std::make_unique<StepSimulator>(graph_, places.first, places.second, options_.offload);
    simulated_ = known;
  }
  return *simulator_;
}

/// Simulates a candidate. If no other candidate beats it, the candidate replaces those that it
/// beats. Of equal candidates the first found stays.
const StepSimulation& PlanSearch::evaluate(const CutPlaces& places, std::vector<char> keep) {
  ++evaluations_;
  StepSimulator& judge = simulator(places);
  const StepSimulation& result = judge.run(keep, MissingValues::kKeep);
  const CutCandidate* const within = best(result.peak_bytes);
  if (within != nullptr && within->more_us <= more_us(result)) return result;
  CutCandidate candidate{simulated_, {}, {}, more_us(result)};
  for (size_t i = 0; i < keep.size(); ++i) {
    const auto v = static_cast<int32_t>(i);
    if (!judge.is_used(v)) continue;
    candidate.kept.push_back(v);
    if (keep[i] == kMoved && judge.may_move(v)) candidate.moved.push_back(v);
  }
  auto next = found_.lower_bound(result.peak_bytes);
  while (next != found_.end() && next->second.more_us >= candidate.more_us)
    next = found_.erase(next);
  found_.emplace(result.peak_bytes, std::move(candidate));
  return result;
}

std::vector<char> PlanSearch::flags(const CutCandidate& from) const {
  std::vector<char> keep(graph_.profile.values.size(), kNotKept);
  for (const int32_t v : from.kept) keep[v] = kKept;
  for (const int32_t v : from.moved) keep[v] = kMoved;
  return keep;
}

}  // namespace remat::detail
