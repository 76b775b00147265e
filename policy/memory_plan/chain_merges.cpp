// SPDX-License-Identifier: BSD-3-Clause

// Finds recurring runs of different types, and joins their ops.
#include "chain_merges.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace remat::detail {

namespace {

constexpr size_t longest_run = 4;
constexpr size_t most_patterns = 6;
constexpr size_t most_merged_ops = 40;

/// Appends the ops of a region whose input is the tensor `input`.
/// @return its output
int append(Block& all, const Block& part, int input) {
  const auto first = static_cast<int>(all.tensors.size());
  const auto indices = [&](const std::vector<int>& tensors) {
    std::vector<int> moved;
    for (const int t : tensors) moved.push_back(t == 0 ? input : first + t - 1);
    return moved;
  };
  for (const BlockTensor& tensor : part.tensors) {
    if (tensor.producer < 0) continue;
    all.tensors.push_back(tensor);
    all.tensors.back().producer += static_cast<int>(all.ops.size());
    all.tensors.back().first_backward_user = -1;
  }
  for (BlockOp op : part.ops) {
    op.ins = indices(op.ins);
    op.outs = indices(op.outs);
    op.backward_needs = indices(op.backward_needs);
    all.ops.push_back(std::move(op));
  }
  return indices({part.output}).front();
}

Block merged(const Chain& chain, const std::vector<int>& pattern) {
  const Block& first = chain.types[pattern.front()];
  Block all(first.input_bytes(), first.tensors[0].has_gradient);
  int output = 0;
  for (const int type : pattern) output = append(all, chain.types[type], output);
  all.link(output);
  return all;
}

bool can_merge(const Chain& chain, const std::vector<int>& run) {
  size_t ops = 0;
  for (const int type : run) ops += chain.types[type].ops.size();
  return ops <= most_merged_ops && std::set<int>(run.begin(), run.end()).size() == run.size();
}

}  // namespace

void add_merges(Chain& chain) {
  std::map<std::vector<int>, int> counts;
  for (size_t first = 0; first < chain.regions.size(); ++first) {
    for (size_t length = 2; length <= longest_run; ++length) {
      if (first + length > chain.regions.size()) break;
      const auto begin = chain.regions.begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<int> run(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (can_merge(chain, run)) ++counts[run];
    }
  }
  std::vector<std::pair<int, std::vector<int>>> runs;
  for (const auto& [run, count] : counts) {
    if (count > 1) runs.emplace_back(-count, run);
  }
  std::sort(runs.begin(), runs.end());
  runs.resize(std::min(runs.size(), most_patterns));
  for (const auto& [count, run] : runs) {
    chain.merges.push_back({run, static_cast<int>(chain.types.size())});
    chain.types.push_back(merged(chain, run));
  }
}

}  // namespace remat::detail
