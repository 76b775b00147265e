// SPDX-License-Identifier: BSD-3-Clause

// Finds the places where one tensor with a gradient is all that later ops read, forward and
// backward.
#include <remat/planner/split_chain.h>

#include <algorithm>

namespace remat::detail {

namespace {

/// A place after op `after` where only `tensor` passes.
struct Cut {
  size_t after = 0;
  int tensor = 0;
};

/// Last op that reads each tensor in any way.
std::vector<int> last_uses(const Block& block) {
  std::vector<int> last(block.tensors.size(), -1);
  for (size_t u = 0; u < block.ops.size(); ++u) {
    for (const int in : block.ops[u].ins) last[in] = static_cast<int>(u);
    for (const int need : block.ops[u].backward_needs) last[need] = static_cast<int>(u);
  }
  return last;
}

std::vector<Cut> possible_cuts(const Block& block) {
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
    if (!reached[block.tensors[passing[0]].producer]) continue;  // No gradient would come back.
    cuts.push_back({static_cast<size_t>(k), passing[0]});
  }
  return cuts;
}

/// The fewest cuts that leave parts of at most max_ops ops, where there are enough.
std::vector<Cut> choose_cuts(const Block& block, size_t max_ops) {
  std::vector<Cut> chosen;
  size_t begin = 0;
  const std::vector<Cut> cuts = possible_cuts(block);
  for (size_t i = 0; i < cuts.size() && block.ops.size() - begin > max_ops; ++i) {
    const bool next_fits = i + 1 < cuts.size() && cuts[i + 1].after + 1 - begin <= max_ops;
    const auto producer = static_cast<size_t>(block.tensors[cuts[i].tensor].producer);
    if (next_fits || producer < begin) continue;
    chosen.push_back(cuts[i]);
    begin = cuts[i].after + 1;
  }
  return chosen;
}

/// Ops begin .. end - 1 as a region whose input is the tensor `input`.
Block part_of(const Block& block, size_t begin, size_t end, int input, int output) {
  std::vector<int> index_of(block.tensors.size(), -1);
  index_of[input] = 0;
  const auto indices = [&](const std::vector<int>& tensors) {
    std::vector<int> all;
    for (const int t : tensors) all.push_back(index_of[t]);
    return all;
  };
  Block part(block.tensors[input].bytes, block.tensors[input].has_gradient);
  for (size_t u = begin; u < end; ++u) {
    const BlockOp& op = block.ops[u];
    part.ops.push_back({op.fwd, op.bwd, op.fwd_tmp, op.bwd_tmp, indices(op.ins), {}, {}});
    for (const int out : op.outs) index_of[out] = part.add_out(block.tensors[out].bytes);
    part.ops.back().backward_needs = indices(op.backward_needs);
  }
  part.link(index_of[output]);
  return part;
}

/// The types that replace a type: itself, or parts that follow each other.
using TypeParts = std::vector<int>;

/// Appends the parts of a type to the chain's types.
TypeParts add_parts(Chain& chain, int type, const std::vector<Cut>& cuts) {
  TypeParts parts;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const Block& whole = chain.types[type];
    const bool is_last = i == cuts.size();
    const size_t end = is_last ? whole.ops.size() : cuts[i].after + 1;
    const int input = i == 0 ? 0 : cuts[i - 1].tensor;
    const int output = is_last ? whole.output : cuts[i].tensor;
    parts.push_back(static_cast<int>(chain.types.size()));
    chain.types.push_back(part_of(whole, begin, end, input, output));
    begin = end;
  }
  return parts;
}

/// Cuts the types of the chain's regions that have too many ops.
std::vector<TypeParts> cut_types(Chain& chain, size_t max_ops) {
  std::vector<TypeParts> parts(chain.types.size());
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = {static_cast<int>(i)};
  for (const int type : chain.regions) {
    if (parts[type].size() > 1 || chain.types[type].ops.size() <= max_ops) continue;
    const std::vector<Cut> cuts = choose_cuts(chain.types[type], max_ops);
    if (!cuts.empty()) parts[type] = add_parts(chain, type, cuts);
  }
  return parts;
}

std::vector<int> replaced(const std::vector<int>& types, const std::vector<TypeParts>& parts) {
  std::vector<int> all;
  for (const int type : types) all.insert(all.end(), parts[type].begin(), parts[type].end());
  return all;
}

}  // namespace

size_t largest_part(const Block& block, size_t max_ops) {
  size_t largest = 0;
  size_t begin = 0;
  for (const Cut& cut : choose_cuts(block, max_ops)) {
    largest = std::max(largest, cut.after + 1 - begin);
    begin = cut.after + 1;
  }
  return std::max(largest, block.ops.size() - begin);
}

SplitChain split_chain(Chain chain, size_t max_ops) {
  SplitChain split;
  const std::vector<TypeParts> parts = cut_types(chain, max_ops);
  for (size_t i = 0; i < chain.regions.size(); ++i) {
    size_t first_op = 0;
    int part = 0;
    for (const int type : parts[chain.regions[i]]) {
      split.parts.push_back({static_cast<int>(i), part++, first_op});
      first_op += chain.types[type].ops.size();
    }
  }
  chain.regions = replaced(chain.regions, parts);
  for (MergePattern& merge : chain.merges) merge.pattern = replaced(merge.pattern, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() > 1 && chain.types[i].ops.size() <= max_region_ops)
      chain.merges.push_back({parts[i], static_cast<int>(i)});
  }
  split.chain = std::move(chain);
  return split;
}

}  // namespace remat::detail
