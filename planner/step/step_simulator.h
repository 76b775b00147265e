// SPDX-License-Identifier: BSD-3-Clause

// Event-by-event simulation of a cut step: its peak and its recomputation. One simulator serves
// many sets of kept values.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/step_cuts.h>

#include "offload_moves.h"
#include "step_needs.h"

namespace remat::detail {

class StepSimulator {
 public:
  /// Positions and groups must be valid; graph and offload terms must outlive this object.
  StepSimulator(const StepGraph& graph, const std::vector<int32_t>& positions,
                const StepGroups& groups, const OffloadTerms& offload);

  /// `keep`: a KeepFlag per value; with kKeep, values that cross cuts are added to `keep`. The
  /// result is valid until the next run.
  const StepSimulation& run(std::vector<char>& keep, MissingValues missing);

  /// True if anything needed this kept value in the last run.
  bool is_used(int32_t value) const { return needs_.is_used(value); }
  bool may_move(int32_t value) const { return moves_.may_move(value); }
  /// The result of the last run; leaves() is true if the last run has offloaded the value.
  const StepSimulation& result() const { return out_; }
  bool leaves(int32_t value) const { return moves_.leaves(value); }

 private:
  void run_forward();
  int32_t own_memory_from(int32_t value) const;
  /// Returns, per value that the program releases, the node that frees it; -1: before backward.
  std::vector<int32_t> start_backward();
  void wait_for_backward();
  void let_go(const std::vector<int32_t>& last_holder);
  void note_storages();
  int32_t memory_until(const HeldValue& kept) const;
  void run_backward();
  void replay(int32_t unit);
  void run_again(int32_t unit);
  void get_moved(int32_t unit);
  void read_again(int32_t unit, int32_t value, int32_t record);
  void rerun_record(int32_t unit, int32_t record);
  void write_again(int32_t unit, int32_t record, const StepWrite& write);
  void make(int32_t unit, int32_t value);
  void drop(int32_t unit, int32_t value);
  bool is_needed_after(int32_t unit, int32_t value, int32_t record) const;
  void reach(int64_t bytes, StepMoment moment, int32_t unit);

  /// The state of a value in the latest replay that uses it.
  struct Replayed {
    int32_t unit = -1;     ///< The unit that is replayed
    int32_t last = -1;     ///< The last record that reads the value
    bool held = false;     ///< Held by slots after the replay
    bool given = false;    ///< The replay reads the kept value, and frees a recomputed one
    bool got = false;      ///< Got from the offload engine
    bool present = false;  ///< Has memory of its own
  };
  Replayed& replayed(int32_t unit, int32_t value);

  const StepGraph& graph_;
  StepUnits units_;
  StepNeeds needs_;
  OffloadMoves moves_;
  StepSimulation out_;
  int64_t now_ = 0;  // bytes alive, without what backward makes outside of replays
  int32_t node_ = 0;
  std::vector<int64_t> freed_;            // per node: bytes freed at its end
  std::vector<char> done_;                // per unit
  std::vector<int32_t> released_values_;  // values that the program releases after the forward
  std::vector<Replayed> replayed_;
  std::vector<int32_t> storage_until_;  // Per storage: the last node that holds a value of it
};

}  // namespace remat::detail
