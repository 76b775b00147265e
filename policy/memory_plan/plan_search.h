// SPDX-License-Identifier: BSD-3-Clause

// Search for plans of a step: the chain planner proposes cuts, the simulator evaluates them, and
// kept values are then changed one by one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "candidate_pool.h"
#include "step_chain.h"
#include "step_simulator.h"

namespace remat::detail {

struct SearchLimits {
  int32_t grid = 32;           ///< Number of budgets
  int32_t evaluations = 6000;  ///< Number of simulations
};

class PlanSearch {
 public:
  /// Graph and terms must outlive this object.
  PlanSearch(const StepGraph& graph, const ReplayCosts& costs, const OffloadTerms& offload,
             const SearchLimits& limits);

  void run();

  const CandidatePool& pool() const { return pool_; }
  int64_t evaluations() const { return evaluations_; }
  const std::vector<int32_t>& positions(int32_t cuts) const { return cuts_[cuts]->first; }
  const StepGroups& groups(int32_t cuts) const { return cuts_[cuts]->second; }
  /// Simulates a candidate again.
  const StepSimulation& simulate(const CutCandidate& candidate);

 private:
  using PlacesAndGroups = std::pair<std::vector<int32_t>, StepGroups>;

  void try_whole();
  void try_regions(const StepRegions& regions);
  void try_chain(const StepRegions& regions);
  void try_moves();
  void refine();
  void fill(int64_t budget_bytes, int64_t until_evaluations);
  void drop_to(int64_t budget_bytes, int64_t until_evaluations);
  bool try_adding(const CutCandidate& to, int32_t value, KeepFlag flag, int64_t budget_bytes);
  std::vector<int32_t> worth_adding(const CutCandidate& from);
  std::vector<int32_t> worth_dropping(const CutCandidate& from) const;
  int32_t number_of(const std::vector<int32_t>& positions, const StepGroups& groups);
  const StepSimulation& evaluate(int32_t cuts, std::vector<char> keep);
  StepSimulator& simulator(int32_t cuts);
  std::vector<char> flags(const CutCandidate& from) const;
  std::vector<int32_t> movable(const CutCandidate& from);

  const StepGraph& graph_;
  ReplayCosts costs_;
  const OffloadTerms& offload_;
  SearchLimits limits_;
  ValueSpans spans_;
  CandidatePool pool_;
  std::map<PlacesAndGroups, int32_t> numbers_;
  std::vector<const PlacesAndGroups*> cuts_;  // by number
  std::unique_ptr<StepSimulator> simulator_;  // for the cuts simulated last
  int32_t simulated_ = -1;
  int64_t evaluations_ = 0;
};

}  // namespace remat::detail
