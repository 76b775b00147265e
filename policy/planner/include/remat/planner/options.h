// SPDX-License-Identifier: BSD-3-Clause

// The ways to run one region: which ops run again, what that costs and what it holds.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// A policy of a region. Bytes leave out the region's input, which its owner holds.
struct Option {
  OpSet rerun;                ///< Ops that the replay runs.
  Ticks time = 0;             ///< Of the replay.
  int64_t kept = 0;           ///< Between forward and backward, without the output
  int64_t forward_peak = 0;   ///< Output included
  int64_t backward_peak = 0;  ///< The output's gradient included
};

/// Every op of the block
OpSet all_ops(const Block& block);

/// Leaves in `recompute` the ops that have to run: those with an out, the region's output excepted,
/// that a backward or an op that runs needs.
OpSet without_dead_ops(const Block& block, OpSet recompute);

/// Per tensor: is it held from forward to backward? The input and the output never are in this
/// sense.
std::vector<char> kept_tensors(const Block& block, const OpSet& rerun);

/// Is the output read by a backward or a rerun op of the region?
bool output_needed(const Block& block, const OpSet& rerun);

/// The option with these ops rerun; no dead ones among them.
Option measure_option(const Block& block, const OpSet& rerun);

/// Most bytes while the region runs forward and keeps nothing but its output; without its input.
int64_t forward_only_peak(const Block& block);

/// All options that no other beats in time, kept bytes and both peaks at once, by time, then kept
/// bytes. Exact up to `exact_ops` ops; above, those on the lower hull of time and kept bytes, found
/// by min-cut, and their neighbours.
std::vector<Option> pareto_options(const Block& block, int exact_ops);

/// Drops options that another one equals or beats in all four; sorts.
std::vector<Option> pareto_filter(std::vector<Option> options);

}  // namespace remat::detail
