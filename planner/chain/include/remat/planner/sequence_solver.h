// SPDX-License-Identifier: BSD-3-Clause

// The least time of each part of a chain, as a function of memory. Equal parts are solved once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/step_function.h>

namespace remat::detail {

/// One way to run the part [first, last], as chosen by dynamic programming.
struct Choice {
  enum class Kind : uint8_t { kOption, kMerged, kGroup };

  Kind kind = Kind::kOption;
  int type = 0;       ///< Type of the region, or the merged type
  size_t option = 0;  ///< Index into ChainModel::options
  size_t next = 0;    ///< First position after the region, merged regions or group of the choice
};

/// Memory and time that an option of a part's first region takes. Bytes leave out the part's input.
struct OptionDemand {
  int64_t least = 0;  ///< Bytes for the region's own forward and backward
  int64_t held = 0;   ///< Bytes held while the rest of the part runs
  Ticks time = 0;     ///< Forward, backward and replay
};

/// Solves each part [first, last]. A part's memory excludes its input x_first. If exact(), the step
/// functions are exact over all options, merges and nested groups; otherwise steps were left out to
/// save memory.
class SequenceSolver {
 public:
  /// `max_breakpoints`: the most steps that a part's function may have; 0 means no limit. `model`
  /// must outlive this.
  SequenceSolver(const ChainModel& model, size_t max_breakpoints);

  const StepFunction& part(size_t first, size_t last) const { return parts_[id(first, last)]; }
  const StepFunction& whole() const { return part(0, model_.length() - 1); }
  const ChainModel& model() const { return model_; }
  bool exact() const { return exact_; }

  /// Calls `visit(choice, time)` with the least time of every choice that fits into `bytes`:
  /// options in the order of ChainModel, then merged types, then groups by rising Choice::next. To
  /// save time, may leave out choices that take longer than `most_time`.
  void visit_choices(size_t first, size_t last, int64_t bytes, Ticks most_time,
                     const std::function<void(const Choice&, Ticks)>& visit) const;

 private:
  size_t id(size_t first, size_t last) const {
    return static_cast<size_t>(ids_[first * model_.length() + last]);
  }
  void solve(size_t first, size_t last, StepMinimum& least);
  void try_options(size_t last, int type, size_t next, StepMinimum& least);
  const std::vector<OptionDemand>& demands(int type, int64_t gradient_bytes);
  int64_t gradient_bytes(size_t last) const;

  const ChainModel& model_;
  std::vector<int> ids_;
  std::vector<StepFunction> parts_;
  std::map<std::pair<int, int64_t>, std::vector<OptionDemand>> demands_;  // By type and gradient
  bool exact_ = true;
};

}  // namespace remat::detail
