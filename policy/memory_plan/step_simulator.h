// SPDX-License-Identifier: BSD-3-Clause

// Runs a cut step event by event: its peak, and what runs again. One simulator serves many sets of
// kept values.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/memory_plan/step_cuts.h>

#include "copy_timeline.h"
#include "offload_moves.h"
#include "step_needs.h"

namespace remat::detail {

class StepSimulator {
 public:
  /// Positions and groups must be valid; the graph and what is offered must outlive this.
  StepSimulator(const StepGraph& graph, const std::vector<int32_t>& positions,
                const StepGroups& groups, const ReplayCosts& costs, const OffloadTerms& offload);

  /// `keep`: a KeepFlag per value; under kKeep what crosses is added to it. Valid until the next
  /// run.
  const StepSimulation& run(std::vector<char>& keep, MissingValues missing);

  const StepUnits& units() const { return units_; }
  /// Of the last run: does anything need this kept value?
  bool is_used(int32_t value) const { return needs_.is_used(value); }
  bool may_move(int32_t value) const { return moves_.may_move(value); }
  /// Of the last run: what that returned, and whether this value is moved.
  const StepSimulation& result() const { return out_; }
  bool leaves(int32_t value) const { return moves_.leaves(value); }
  /// Of the last run, what happened to values that move.
  const std::vector<CopyStep>& copy_steps() const { return copy_steps_; }

 private:
  void run_forward();
  void start_copies();
  void pass_forward();
  int32_t own_memory_from(int32_t value) const;
  void start_backward();
  void wait_for_backward();
  void let_go();
  void note_storages();
  int32_t memory_until(const HeldValue& kept) const;
  void run_backward();
  void end_node(size_t node);
  void replay(int32_t unit);
  void run_again(int32_t unit);
  void ask_for_moved(int32_t unit);
  void compute(double us);
  void copy_step(CopyStep::Kind kind, int32_t value);
  bool is_put(int32_t value) const { return is_put_[value] != 0; }
  void read_again(int32_t unit, int32_t value, int32_t record);
  void rerun_record(int32_t unit, int32_t record);
  void write_again(int32_t unit, int32_t record, const StepWrite& write);
  void make(int32_t unit, int32_t value);
  void drop(int32_t unit, int32_t value);
  bool is_needed_after(int32_t unit, int32_t value, int32_t record) const;
  void reach(int64_t bytes, StepMoment moment, int32_t top_unit);

  /// What a replay knows of a value.
  struct Replayed {
    int32_t unit = -1;     ///< The replay that this is of
    int32_t last = -1;     ///< Record that reads it last
    bool held = false;     ///< By slots, after the replay
    bool given = false;    ///< The kept one is read; one that is made goes at once.
    bool asked = false;    ///< Of the engine: it moves.
    bool present = false;  ///< Has memory of its own
  };
  Replayed& replayed(int32_t unit, int32_t value);

  const StepGraph& graph_;
  StepUnits units_;
  StepNeeds needs_;
  OffloadMoves moves_;
  std::vector<int64_t> bytes_;  // Per value
  CopyTimeline timeline_;
  ReplayCosts costs_;
  StepSimulation out_;
  std::vector<int32_t> top_index_;  // Per unit, into out_.top_units
  int64_t now_ = 0;                 // Bytes alive, without what backward makes outside of replays
  int32_t node_ = 0;
  std::vector<int64_t> freed_;            // Per node, when it has ended
  std::vector<char> done_;                // Per unit
  std::vector<int32_t> released_values_;  // The program's memory, which it lets go
  /// Per value: the node that frees that memory; -1: it goes before backward.
  std::vector<int32_t> last_holder_;
  std::vector<Replayed> replayed_;
  std::vector<int32_t> storage_until_;  // Per storage: the last node that holds a value of it
  int64_t needed_ = 0;                  // Of what leaves and backward still needs
  std::vector<int64_t> needed_until_;   // Per node: of these bytes, those that its end frees
  std::vector<int32_t> put_;            // Values that the engine is given
  std::vector<char> is_put_;            // Per value
  std::vector<CopyStep> copy_steps_;
  std::vector<std::vector<int32_t>> dropped_by_;  // Per node: values that slots have until its end
};

}  // namespace remat::detail
