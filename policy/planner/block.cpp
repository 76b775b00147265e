// SPDX-License-Identifier: BSD-3-Clause

// Translates names to indices.
#include "block.h"

#include <algorithm>
#include <unordered_map>

namespace remat::detail {

namespace {

std::vector<int> indices(const std::vector<std::string>& names,
                         const std::unordered_map<std::string, int>& index_of) {
  std::vector<int> all;
  for (const std::string& name : names) {
    const int index = index_of.at(name);
    if (std::find(all.begin(), all.end(), index) == all.end()) all.push_back(index);
  }
  return all;
}

}  // namespace

Block::Block(const BlockType& type) {
  std::unordered_map<std::string, int> index_of = {{"in", 0}};
  tensors.push_back({type.input_bytes, -1, -1, -1, type.input_grad});
  for (const ProfileOp& from : type.ops) {
    const int op_index = static_cast<int>(ops.size());
    BlockOp op;
    op.fwd = to_ticks(from.fwd_us);
    op.bwd = to_ticks(from.bwd_us);
    op.fwd_tmp = from.fwd_tmp_bytes;
    op.bwd_tmp = from.bwd_tmp_bytes;
    op.ins = indices(from.ins, index_of);
    for (const ProfileTensor& out : from.outs) {
      const int index = static_cast<int>(tensors.size());
      index_of.emplace(out.name, index);
      tensors.push_back({out.bytes, op_index, op_index, -1, op.outs.empty()});
      op.outs.push_back(index);
    }
    op.backward_needs = indices(from.bwd_needs, index_of);
    for (const int in : op.ins) tensors[in].last_reader = op_index;
    for (const int need : op.backward_needs) {
      int& first = tensors[need].first_backward_user;
      if (first < 0) first = op_index;
    }
    fwd += op.fwd;
    bwd += op.bwd;
    ops.push_back(std::move(op));
  }
  output = index_of.at(type.output);
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

}  // namespace remat::detail
