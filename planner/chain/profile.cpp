// SPDX-License-Identifier: BSD-3-Clause

// Validates and digests profiles, and converts them to blocks and chains with indices, not names.
#include <unordered_map>

#include <remat/planner/digest.h>
#include <remat/planner/profile.h>

#include "profile_check.h"

namespace remat {

namespace {

using detail::Digest;

void add_op(Digest& digest, const ProfileOp& op) {
  digest.add(op.name);
  digest.add(detail::to_ticks(op.fwd_us));
  digest.add(detail::to_ticks(op.bwd_us));
  digest.add(op.fwd_tmp_bytes);
  digest.add(op.bwd_tmp_bytes);
  digest.add(op.ins);
  digest.add(static_cast<int64_t>(op.outs.size()));
  for (const ProfileTensor& out : op.outs) {
    digest.add(out.name);
    digest.add(out.bytes);
  }
  digest.add(op.bwd_needs);
}

}  // namespace

void Profile::validate(const std::string& source) const {
  detail::raise_faults("profile", source, nullptr, [&] { detail::check_profile(*this); });
}

std::string Profile::digest() const {
  Digest digest;
  for (const BlockType& type : block_types) {
    digest.add(type.name);
    digest.add(type.input_bytes);
    digest.add(static_cast<int64_t>(type.input_grad));
    digest.add(type.output);
    digest.add(static_cast<int64_t>(type.ops.size()));
    for (const ProfileOp& op : type.ops) add_op(digest, op);
  }
  for (const int type : chain) digest.add(static_cast<int64_t>(type));
  for (const MergePattern& merge : merge_patterns) {
    digest.add(static_cast<int64_t>(merge.block_type));
    for (const int type : merge.pattern) digest.add(static_cast<int64_t>(type));
    digest.add(static_cast<int64_t>(-1));
  }
  return digest.hex();
}

namespace detail {

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
  chain.merges = profile.merge_patterns;
  return chain;
}

}  // namespace detail

}  // namespace remat
