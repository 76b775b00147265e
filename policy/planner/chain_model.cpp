// SPDX-License-Identifier: BSD-3-Clause

// Builds the numbers of a chain.
#include <remat/planner/chain_model.h>

#include <algorithm>

namespace remat::detail {

namespace {

std::vector<Option> options_of(const Block& block, OptionClass options, int exact_ops) {
  if (options == OptionClass::kSaveOnly) return {measure_option(block, OpSet())};
  return pareto_options(block, exact_ops);
}

}  // namespace

ChainModel::ChainModel(const Chain& from, OptionClass option_class, int exact_ops) {
  std::vector<int> type_of(from.types.size(), -1);
  std::vector<char> used(from.types.size(), 0);
  for (const int type : from.regions) used[type] = 1;
  for (const MergePattern& merge : from.merges) used[merge.block_type] = 1;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const auto same = std::find(types.begin(), types.end(), from.types[i]);
    type_of[i] = static_cast<int>(same - types.begin());
    if (same == types.end()) types.push_back(from.types[i]);
  }
  for (const int type : from.regions) chain.push_back(type_of[type]);
  for (const MergePattern& merge : from.merges) {
    Merge mapped;
    mapped.type = type_of[merge.block_type];
    mapped.named = merge.block_type;
    for (const int type : merge.pattern) mapped.pattern.push_back(type_of[type]);
    merges.push_back(std::move(mapped));
  }
  for (const Block& type : types) {
    options.push_back(options_of(type, option_class, exact_ops));
    forward_only_peak_bytes.push_back(forward_only_peak(type));
  }
  for (const int type : chain) ideal_time += types[type].fwd + types[type].bwd;
}

bool ChainModel::matches(const Merge& merge, size_t first, size_t last) const {
  return first + merge.pattern.size() <= last + 1 &&
         std::equal(merge.pattern.begin(), merge.pattern.end(),
                    chain.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace remat::detail
