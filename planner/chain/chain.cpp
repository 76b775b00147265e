// SPDX-License-Identifier: BSD-3-Clause

// Builds blocks and chains, and follows gradients. Cuts large regions where later ops read only one
// earlier tensor, in forward and backward, if that tensor has a gradient.
#include <remat/planner/chain.h>

#include <algorithm>
#include <utility>

namespace remat::detail {

namespace {

/// An op after which only one tensor passes, and that tensor.
using Cut = std::pair<size_t, int>;

/// Per tensor: the last op whose forward or backward reads it.
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
    cuts.emplace_back(k, passing[0]);
  }
  return cuts;
}

/// The fewest cuts that leave parts of at most max_ops ops, as far as possible_cuts() allows.
std::vector<Cut> choose_cuts(const Block& block, size_t max_ops) {
  std::vector<Cut> chosen;
  size_t begin = 0;
  const std::vector<Cut> cuts = possible_cuts(block);
  for (size_t i = 0; i < cuts.size() && block.ops.size() - begin > max_ops; ++i) {
    const bool next_fits = i + 1 < cuts.size() && cuts[i + 1].first + 1 - begin <= max_ops;
    const auto producer = static_cast<size_t>(block.tensors[cuts[i].second].producer);
    if (next_fits || producer < begin) continue;
    chosen.push_back(cuts[i]);
    begin = cuts[i].first + 1;
  }
  return chosen;
}

/// Returns ops [begin, end) as a region whose input and output are the tensors of these names.
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

/// The types that replace a type: its parts in order or, if the type is not cut, the type itself.
using TypeParts = std::vector<int>;

TypeParts add_parts(Chain& chain, int type, const std::vector<Cut>& cuts) {
  TypeParts parts;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const Block& whole = chain.types[type];
    const bool is_last = i == cuts.size();
    const size_t end = is_last ? whole.ops.size() : cuts[i].first + 1;
    const int input = i == 0 ? 0 : cuts[i - 1].second;
    const int output = is_last ? whole.output : cuts[i].second;
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

/// Appends the ops of `part`, whose input becomes the tensor `input` of `all`.
/// @return the index of the part's output
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

}  // namespace

Block merged_block(const std::vector<Block>& types, const std::vector<int>& pattern) {
  const Block& first = types[pattern.front()];
  Block all(first.input_bytes(), first.tensors[0].has_gradient);
  int output = 0;
  for (const int type : pattern) output = append(all, types[type], output);
  all.link(output);
  return all;
}

size_t largest_part(const Block& block, size_t max_ops) {
  size_t largest = 0;
  size_t begin = 0;
  for (const Cut& cut : choose_cuts(block, max_ops)) {
    largest = std::max(largest, cut.first + 1 - begin);
    begin = cut.first + 1;
  }
  return std::max(largest, block.ops.size() - begin);
}

Chain split_chain(Chain chain, size_t max_ops) {
  const std::vector<TypeParts> parts = cut_types(chain, max_ops);
  for (size_t i = 0; i < chain.regions.size(); ++i) {
    size_t first_op = 0;
    int part = 0;
    for (const int type : parts[chain.regions[i]]) {
      chain.parts.push_back({static_cast<int>(i), part++, first_op});
      first_op += chain.types[type].ops.size();
    }
  }
  chain.regions = replaced(chain.regions, parts);
  for (MergePattern& merge : chain.merges) merge.pattern = replaced(merge.pattern, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() > 1 && chain.types[i].ops.size() <= max_region_ops)
      chain.merges.push_back({parts[i], static_cast<int>(i)});
  }
  return chain;
}

ChainModel::ChainModel(const Chain& from, int exact_ops) {
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
    for (const int type : merge.pattern) mapped.pattern.push_back(type_of[type]);
    merges.push_back(std::move(mapped));
  }
  for (const Block& type : types) {
    options.push_back(pareto_options(type, exact_ops));
    forward_only_peak_bytes.push_back(forward_only_peak(type));
  }
  for (const int type : chain) ideal_time += types[type].fwd + types[type].bwd;
}

bool ChainModel::matches(const Merge& merge, size_t first, size_t last) const {
  return first + merge.pattern.size() <= last + 1 &&
         std::equal(merge.pattern.begin(), merge.pattern.end(),
                    chain.begin() + static_cast<std::ptrdiff_t>(first));
}

Block::Block(int64_t input_bytes, bool input_has_gradient) {
  tensors.push_back({input_bytes, -1, -1, -1, input_has_gradient});
}

int Block::add_out(int64_t bytes) {
  const int index = static_cast<int>(tensors.size());
  tensors.push_back({bytes, static_cast<int>(ops.size()) - 1, -1, -1, false});
  ops.back().outs.push_back(index);
  return index;
}

void Block::link(int output_tensor) {
  output = output_tensor;
  for (BlockTensor& tensor : tensors) tensor.last_reader = tensor.producer;
  for (size_t u = 0; u < ops.size(); ++u) {
    const BlockOp& op = ops[u];
    const int index = static_cast<int>(u);
    tensors[op.outs.front()].has_gradient = true;
    for (const int in : op.ins) tensors[in].last_reader = index;
    for (const int need : op.backward_needs) {
      int& first = tensors[need].first_backward_user;
      if (first < 0) first = index;
    }
    fwd += op.fwd;
    bwd += op.bwd;
  }
}

void add_once(std::vector<int>& tensors, int tensor) {
  if (std::find(tensors.begin(), tensors.end(), tensor) == tensors.end()) tensors.push_back(tensor);
}

std::vector<char> ops_with_gradient(const Block& block) {
  std::vector<char> wanted(block.tensors.size(), 0);
  wanted[block.output] = 1;
  std::vector<char> reached(block.ops.size(), 0);
  for (size_t u = block.ops.size(); u-- > 0;) {
    reached[u] = wanted[block.ops[u].outs[0]];
    if (!reached[u]) continue;
    for (const int in : block.ops[u].ins) wanted[in] = 1;
  }
  return reached;
}

bool passes_gradient(const Block& block) {
  const std::vector<char> reached = ops_with_gradient(block);
  for (size_t u = 0; u < block.ops.size(); ++u) {
    const std::vector<int>& ins = block.ops[u].ins;
    if (reached[u] && std::find(ins.begin(), ins.end(), 0) != ins.end()) return true;
  }
  return false;
}

}  // namespace remat::detail
