// SPDX-License-Identifier: BSD-3-Clause

// Checks and digests of profiles.
#include <remat/planner/profile.h>

#include <cstdio>

#include "block.h"
#include "profile_check.h"

namespace remat {

namespace {

/// FNV-1a over numbers and strings, each with its length.
class Digest {
 public:
  void add(int64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    for (const char c : text) byte(static_cast<uint8_t>(c));
  }
  void add(const std::vector<std::string>& texts) {
    add(static_cast<int64_t>(texts.size()));
    for (const std::string& text : texts) add(text);
  }
  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  void byte(uint8_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }

  uint64_t hash_ = 14695981039346656037U;
};

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
  digest.add(detail::to_ticks(link_gbps));
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
