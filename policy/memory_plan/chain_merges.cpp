// SPDX-License-Identifier: BSD-3-Clause

// Finds recurring runs of different types, and joins their ops.
#include "chain_merges.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace remat::detail {

namespace {

constexpr size_t longest_run = 4;
constexpr size_t most_patterns = 6;
constexpr size_t most_merged_ops = 40;

void rename(std::vector<std::string>& names, const std::string& prefix, const std::string& input) {
  for (std::string& name : names) name = name == "in" ? input : prefix + name;
}

BlockType merged(const Profile& profile, const std::vector<int>& pattern) {
  BlockType all;
  all.name = "m";
  const BlockType& first = profile.block_types[pattern.front()];
  all.input_bytes = first.input_bytes;
  all.input_grad = first.input_grad;
  std::string input = "in";
  for (const int type : pattern) {
    const BlockType& part = profile.block_types[type];
    const std::string prefix = part.name + ".";
    all.name += part.name;
    for (ProfileOp op : part.ops) {
      rename(op.ins, prefix, input);
      rename(op.bwd_needs, prefix, input);
      for (ProfileTensor& out : op.outs) out.name = prefix + out.name;
      all.ops.push_back(std::move(op));
    }
    input = prefix + part.output;
  }
  all.output = input;
  return all;
}

bool can_merge(const Profile& profile, const std::vector<int>& run) {
  size_t ops = 0;
  for (const int type : run) ops += profile.block_types[type].ops.size();
  return ops <= most_merged_ops && std::set<int>(run.begin(), run.end()).size() == run.size();
}

}  // namespace

void add_merge_patterns(Profile& profile) {
  std::map<std::vector<int>, int> counts;
  for (size_t first = 0; first < profile.chain.size(); ++first) {
    for (size_t length = 2; length <= longest_run; ++length) {
      if (first + length > profile.chain.size()) break;
      const auto begin = profile.chain.begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<int> run(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (can_merge(profile, run)) ++counts[run];
    }
  }
  std::vector<std::pair<int, std::vector<int>>> runs;
  for (const auto& [run, count] : counts) {
    if (count > 1) runs.emplace_back(-count, run);
  }
  std::sort(runs.begin(), runs.end());
  runs.resize(std::min(runs.size(), most_patterns));
  for (const auto& [count, run] : runs) {
    profile.merge_patterns.push_back({run, static_cast<int>(profile.block_types.size())});
    profile.block_types.push_back(merged(profile, run));
  }
}

}  // namespace remat::detail
