// SPDX-License-Identifier: BSD-3-Clause

// Builds the numbers of a chain.
#include "chain_model.h"

#include <algorithm>

namespace remat::detail {

namespace {

bool equal(const BlockOp& a, const BlockOp& b) {
  return a.fwd == b.fwd && a.bwd == b.bwd && a.fwd_tmp == b.fwd_tmp && a.bwd_tmp == b.bwd_tmp &&
         a.ins == b.ins && a.outs == b.outs && a.backward_needs == b.backward_needs;
}

/// The same numbers; names do not matter.
bool equal(const Block& a, const Block& b) {
  const auto same_tensor = [](const BlockTensor& x, const BlockTensor& y) {
    return x.bytes == y.bytes && x.has_gradient == y.has_gradient;
  };
  return a.output == b.output &&
         std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                    [](const BlockOp& x, const BlockOp& y) { return equal(x, y); }) &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    same_tensor);
}

std::vector<Option> options_of(const Block& block, OptionClass options, int exact_ops) {
  if (options == OptionClass::kNone) return {};
  if (options == OptionClass::kSaveOnly) return {measure_option(block, OpSet())};
  return pareto_options(block, exact_ops);
}

}  // namespace

ChainModel::ChainModel(const Profile& profile, OptionClass option_class, int exact_ops) {
  std::vector<int> type_of(profile.block_types.size(), -1);
  std::vector<char> used(profile.block_types.size(), 0);
  for (const int type : profile.chain) used[type] = 1;
  for (const MergePattern& merge : profile.merge_patterns) used[merge.block_type] = 1;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    Block block(profile.block_types[i]);
    const auto same = std::find_if(types.begin(), types.end(),
                                   [&](const Block& other) { return equal(block, other); });
    type_of[i] = static_cast<int>(same - types.begin());
    if (same == types.end()) types.push_back(std::move(block));
  }
  for (const int type : profile.chain) chain.push_back(type_of[type]);
  for (const MergePattern& merge : profile.merge_patterns) {
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
