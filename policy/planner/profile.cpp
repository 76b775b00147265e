// SPDX-License-Identifier: BSD-3-Clause

// Validation and digests of profiles.
#include <remat/planner/digest.h>
#include <remat/planner/profile.h>

#include <remat/planner/block.h>
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
  if (const auto fault = detail::find_fault(*this)) detail::raise_fault(*fault, source);
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

}  // namespace remat
