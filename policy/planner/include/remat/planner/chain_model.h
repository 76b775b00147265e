// SPDX-License-Identifier: BSD-3-Clause

// A chain ready to be solved: equal types are one, and each type has its options.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/options.h>

namespace remat::detail {

/// Consecutive regions that may run as one.
struct Merge {
  std::vector<int> pattern;  ///< Types, as in ChainModel::chain
  int type = 0;
  int named = 0;  ///< The type in the chain that was given, which names its ops and tensors
};

/// The options that a planner may choose from.
enum class OptionClass : uint8_t {
  kAll,       ///< Any policy for any op
  kSaveOnly,  ///< No op of a region that is replayed by itself runs again, as in Rotor's plans
};

struct ChainModel {
  /// Regions of at most `exact_ops` ops have all their options tried.
  ChainModel(const Chain& from, OptionClass options, int exact_ops);

  size_t length() const { return chain.size(); }
  const Block& block(size_t position) const { return types[chain[position]]; }
  int64_t input_bytes(size_t position) const { return block(position).input_bytes(); }
  int64_t output_bytes(size_t position) const { return block(position).output_bytes(); }
  bool matches(const Merge& merge, size_t first, size_t last) const;

  std::vector<Block> types;
  std::vector<std::vector<Option>> options;      ///< Per type
  std::vector<int64_t> forward_only_peak_bytes;  ///< Per type
  std::vector<int> chain;
  std::vector<Merge> merges;
  Ticks ideal_time = 0;
};

}  // namespace remat::detail
