// SPDX-License-Identifier: BSD-3-Clause

// Search for plans of a step: the chain planner proposes cuts, the simulator evaluates them, and
// kept values are then changed one by one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <remat/planner/memory_planner.h>

#include "step_chain.h"
#include "step_simulator.h"

namespace remat::detail {

/// A plan that the search has found.
struct CutCandidate {
  const CutPlaces* places = nullptr;  ///< Owned by the search
  std::vector<int32_t> kept;          ///< Values, ascending
  std::vector<int32_t> moved;         ///< Those of `kept` that are offloaded
  double more_us = 0;                 ///< Time of recomputation and of waits for copies
};

class PlanSearch {
 public:
  /// Both arguments must outlive this object.
  PlanSearch(const StepGraph& graph, const MemoryPlannerOptions& options)
      : graph_(graph), options_(options), spans_(graph) {}

  void run();

  /// The candidates by peak. No candidate beats another in peak and time: times fall as peaks rise.
  const std::map<int64_t, CutCandidate>& found() const { return found_; }
  int64_t evaluations() const { return evaluations_; }

 private:
  void try_whole();
  void try_regions(const StepRegions& regions);
  void try_chain(const StepRegions& regions);
  void try_moves();
  void refine(int64_t evaluations);
  void fill(int64_t budget_bytes, int64_t until_evaluations);
  void drop_to(int64_t budget_bytes, int64_t until_evaluations);
  bool try_adding(const CutCandidate& to, int32_t value, KeepFlag flag, int64_t budget_bytes);
  std::vector<int32_t> worth_adding(const CutCandidate& from);
  std::vector<int32_t> worth_dropping(const CutCandidate& from) const;
  /// The fastest candidate within a budget; nullptr if there is none.
  const CutCandidate* best(int64_t budget_bytes) const;
  const StepSimulation& evaluate(const CutPlaces& places, std::vector<char> keep);
  StepSimulator& simulator(const CutPlaces& places);
  std::vector<char> flags(const CutCandidate& from) const;
  std::vector<int32_t> movable(const CutCandidate& from);

  const StepGraph& graph_;
  const MemoryPlannerOptions& options_;
  ValueSpans spans_;
  std::map<int64_t, CutCandidate> found_;
  std::set<CutPlaces> places_;
  std::unique_ptr<StepSimulator> simulator_;  // for the places simulated last
  const CutPlaces* simulated_ = nullptr;
  int64_t evaluations_ = 0;
};

}  // namespace remat::detail
