// SPDX-License-Identifier: BSD-3-Clause

// A cut step as a chain of regions, and schedules of that chain as cuts of the step.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/schedule.h>

#include "cut_choice.h"
#include "step_needs.h"

namespace remat::detail {

struct ChainRegion {
  int32_t begin = 0;  ///< First record
  int32_t end = 0;
  /// Records of each op; records that write one storage are one op.
  std::vector<std::vector<int32_t>> ops;
};

/// Note [Gradients in the chain]
/// The planner adds a gradient for every first out of an op, but a step profile already has the
/// measured gradients. So an op's first out is an empty tensor, listed before all that the op
/// makes, and the bytes measured in backward become the op's workspace. Only a region's output is a
/// real first out, since the planner passes gradients from region to region; the bytes that the
/// planner counts for these gradients are subtracted from the workspace.
class RegionBuilder {
 public:
  /// `entering`, `leaving`: the storages that are the region's input and output, or -1.
  RegionBuilder(const StepGraph& graph, const ValueSpans& spans, const std::vector<char>& pinned,
                int32_t begin, int32_t end, int32_t entering, int32_t leaving);

  const ChainRegion& region() const { return region_; }
  Block take() { return std::move(block_); }

 private:
  void join_writes();
  void join_with_later();
  int32_t find(int32_t record);
  void join(int32_t a, int32_t b);
  void number_ops();
  void add_op(const std::vector<int32_t>& records);
  void add_reads(int32_t value);
  void add_needs(int32_t value);
  size_t output_maker() const;
  void lead_gradients(size_t output_maker);
  void set_backward_workspaces(size_t output_maker);
  bool is_local(int32_t storage) const;
  bool is_entering(int32_t value) const;
  bool is_inside(int32_t record) const { return region_.begin <= record && record < region_.end; }

  const StepGraph& graph_;
  const ValueSpans& spans_;
  const std::vector<char>& pinned_;
  int32_t entering_;
  int32_t leaving_;
  ChainRegion region_;
  Block block_;
  std::vector<int32_t> joined_;                 // Per record of the region
  std::vector<size_t> op_of_;                   // Per record of the region
  std::unordered_map<int32_t, int> tensor_of_;  // Per local storage
  size_t first_reader_ = 0;                     // First op that reads the entering storage
};

struct StepChain {
  StepChain(const StepGraph& graph, const ValueSpans& spans, const StepRegions& regions);

  /// True if the chain planner can plan the chain: numbers and sizes are within its limits, and
  /// every region after the first passes a gradient on to the region before it.
  bool is_plannable() const;

  Chain chain;
  std::vector<ChainRegion> regions;
};

/// Returns the places of a schedule's cuts and, per value, true if it is kept when a unit needs it.
/// @param split the split chain, whose positions the schedule has
std::pair<CutPlaces, std::vector<char>> to_cuts(const StepGraph& graph, const StepChain& chain,
                                                const StepRegions& regions, const Chain& split,
                                                const Schedule& schedule);

}  // namespace remat::detail
