// SPDX-License-Identifier: BSD-3-Clause

// The ways to run one region: which ops run again, and what that costs and holds.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// One way to run a region. Bytes exclude the region's input, which counts outside of the region.
struct Option {
  OpSet rerun;                ///< Ops that the replay runs.
  Ticks time = 0;             ///< Time of the replay
  int64_t kept = 0;           ///< Bytes held between forward and backward, without the output
  int64_t forward_peak = 0;   ///< Includes the output
  int64_t backward_peak = 0;  ///< Includes the output's gradient
};

OpSet all_ops(const Block& block);

/// Removes dead ops from `recompute`. An op is dead if no backward and no other rerun op needs any
/// of its outs. A need of the region's output does not count.
OpSet without_dead_ops(const Block& block, OpSet recompute);

/// Per tensor: true if it is held from forward to backward. Always false for the input and the
/// output.
std::vector<char> kept_tensors(const Block& block, const OpSet& rerun);

/// True if a backward or a rerun op of the region reads the output.
bool output_needed(const Block& block, const OpSet& rerun);

/// Measures the option that reruns these ops, which must contain no dead ops.
Option measure_option(const Block& block, const OpSet& rerun);

/// Peak bytes, without the region's input, while the region runs forward and keeps only its output.
int64_t forward_only_peak(const Block& block);

/// All options that no other option equals or beats in time, kept bytes and both peaks at once,
/// sorted by time, then by kept bytes. Exact up to `exact_ops` ops. Larger regions get the options
/// on the lower hull of time and kept bytes, found by minimum cuts, and the neighbours of these
/// options.
std::vector<Option> pareto_options(const Block& block, int exact_ops);

/// Removes options that another option equals or beats in all four numbers; sorts the rest.
std::vector<Option> pareto_filter(std::vector<Option> options);

}  // namespace remat::detail
