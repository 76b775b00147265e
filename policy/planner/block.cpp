// SPDX-License-Identifier: BSD-3-Clause

// Builds blocks, and follows their gradients.
#include <remat/planner/block.h>

#include <algorithm>

namespace remat::detail {

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
