// SPDX-License-Identifier: BSD-3-Clause

// Names to indices.
#include "profile_chain.h"

#include <unordered_map>

namespace remat::detail {

Block to_block(const BlockType& type) {
  std::unordered_map<std::string, int> index_of = {{"in", 0}};
  const auto indices = [&](const std::vector<std::string>& names) {
    std::vector<int> all;
    for (const std::string& name : names) add_once(all, index_of.at(name));
    return all;
  };
  Block block(type.input_bytes, type.input_grad);
  for (const ProfileOp& from : type.ops) {
    block.ops.push_back({to_ticks(from.fwd_us),
                         to_ticks(from.bwd_us),
                         from.fwd_tmp_bytes,
                         from.bwd_tmp_bytes,
                         indices(from.ins),
                         {},
                         {}});
    for (const ProfileTensor& out : from.outs) index_of.emplace(out.name, block.add_out(out.bytes));
    block.ops.back().backward_needs = indices(from.bwd_needs);
  }
  block.link(index_of.at(type.output));
  return block;
}

Chain to_chain(const Profile& profile) {
  Chain chain;
  for (const BlockType& type : profile.block_types) chain.types.push_back(to_block(type));
  chain.regions = profile.chain;
  for (const MergePattern& merge : profile.merge_patterns)
    chain.merges.push_back({merge.pattern, merge.block_type});
  return chain;
}

}  // namespace remat::detail
