// SPDX-License-Identifier: BSD-3-Clause

// Finds the places where later ops read only one earlier tensor, which has a gradient, in forward
// and backward.
#include "split_regions.h"

#include <algorithm>
#include <unordered_map>

#include "block.h"

namespace remat::detail {

namespace {

/// A possible cut after an op; `tensor` crosses it.
struct Cut {
  size_t after = 0;
  size_t producer = 0;
  std::string tensor;
};

/// Last op that reads each tensor, in its forward or backward.
std::vector<int> last_uses(const Block& block) {
  std::vector<int> last(block.tensors.size(), -1);
  for (size_t u = 0; u < block.ops.size(); ++u) {
    for (const int in : block.ops[u].ins) last[in] = static_cast<int>(u);
    for (const int need : block.ops[u].backward_needs) last[need] = static_cast<int>(u);
  }
  return last;
}

std::vector<Cut> possible_cuts(const BlockType& type) {
  const Block block(type);
  const std::vector<int> last = last_uses(block);
  const std::vector<char> reached = ops_with_gradient(block);
  const int output_op = block.tensors[block.output].producer;
  std::vector<Cut> cuts;
  for (int k = 0; k < output_op; ++k) {
    std::vector<int> passing;
    for (size_t t = 0; t < block.tensors.size(); ++t) {
      if (block.tensors[t].producer <= k && last[t] > k) passing.push_back(static_cast<int>(t));
    }
    if (passing.size() != 1 || passing[0] == 0 || !block.tensors[passing[0]].has_gradient) continue;
    const int producer = block.tensors[passing[0]].producer;
    if (!reached[producer]) continue;  // no gradient would come back
    cuts.push_back(
        {static_cast<size_t>(k), static_cast<size_t>(producer), type.ops[producer].outs[0].name});
  }
  return cuts;
}

/// The fewest cuts that leave parts of at most max_ops ops, if there are enough cuts.
std::vector<Cut> choose_cuts(const BlockType& type, size_t max_ops) {
  std::vector<Cut> chosen;
  size_t begin = 0;
  const std::vector<Cut> cuts = possible_cuts(type);
  for (size_t i = 0; i < cuts.size() && type.ops.size() - begin > max_ops; ++i) {
    const bool next_fits = i + 1 < cuts.size() && cuts[i + 1].after + 1 - begin <= max_ops;
    if (next_fits || cuts[i].producer < begin) continue;
    chosen.push_back(cuts[i]);
    begin = cuts[i].after + 1;
  }
  return chosen;
}

void rename(std::vector<std::string>& names, const std::string& from) {
  std::replace(names.begin(), names.end(), from, std::string("in"));
}

std::vector<BlockType> parts_of(const BlockType& type, const std::vector<Cut>& cuts) {
  std::vector<BlockType> parts;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i].after + 1 : type.ops.size();
    BlockType part;
    part.name = type.name + "#" + std::to_string(i);
    part.input_grad = i > 0 || type.input_grad;
    part.output = i < cuts.size() ? cuts[i].tensor : type.output;
    part.ops.assign(type.ops.begin() + static_cast<std::ptrdiff_t>(begin),
                    type.ops.begin() + static_cast<std::ptrdiff_t>(end));
    part.input_bytes = type.input_bytes;
    if (i > 0) {
      const std::string& passing = cuts[i - 1].tensor;
      for (const ProfileOp& op : parts.back().ops) {
        if (op.outs[0].name == passing) part.input_bytes = op.outs[0].bytes;
      }
      for (ProfileOp& op : part.ops) {
        rename(op.ins, passing);
        rename(op.bwd_needs, passing);
      }
    }
    parts.push_back(std::move(part));
    begin = end;
  }
  return parts;
}

}  // namespace

size_t largest_part(const BlockType& type, size_t max_ops) {
  size_t largest = 0;
  size_t begin = 0;
  for (const Cut& cut : choose_cuts(type, max_ops)) {
    largest = std::max(largest, cut.after + 1 - begin);
    begin = cut.after + 1;
  }
  return std::max(largest, type.ops.size() - begin);
}

SplitProfile split_regions(const Profile& profile, size_t max_ops) {
  SplitProfile split;
  split.profile = profile;
  std::vector<std::vector<int>> parts(profile.block_types.size());
  std::vector<char> in_chain(profile.block_types.size(), 0);
  for (const int type : profile.chain) in_chain[type] = 1;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = {static_cast<int>(i)};
    if (!in_chain[i] || profile.block_types[i].ops.size() <= max_ops) continue;
    const std::vector<Cut> cuts = choose_cuts(profile.block_types[i], max_ops);
    if (cuts.empty()) continue;
    parts[i].clear();
    for (BlockType& part : parts_of(profile.block_types[i], cuts)) {
      parts[i].push_back(static_cast<int>(split.profile.block_types.size()));
      split.profile.block_types.push_back(std::move(part));
    }
  }
  const auto replaced = [&](const std::vector<int>& types) {
    std::vector<int> all;
    for (const int type : types) all.insert(all.end(), parts[type].begin(), parts[type].end());
    return all;
  };
  split.profile.chain = replaced(profile.chain);
  for (MergePattern& merge : split.profile.merge_patterns) merge.pattern = replaced(merge.pattern);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() > 1 && profile.block_types[i].ops.size() <= max_region_ops)
      split.profile.merge_patterns.push_back({parts[i], static_cast<int>(i)});
  }
  for (size_t i = 0; i < profile.chain.size(); ++i) {
    for (size_t part = 0; part < parts[profile.chain[i]].size(); ++part) {
      split.part.push_back(static_cast<int>(part));
      split.original.push_back(static_cast<int>(i));
    }
  }
  return split;
}

}  // namespace remat::detail
