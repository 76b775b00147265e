// SPDX-License-Identifier: BSD-3-Clause

// Small random profiles with everything that can make plans differ.
#include <string>

#include "planner/chain/brute_force.h"

namespace remat::test {

namespace {

class Maker {
 public:
  explicit Maker(std::mt19937& random) : random_(random) {}

  Profile profile() {
    Profile profile;
    profile.name = "random";
    const int types = pick(1, 4);
    const int sizes = pick(1, 4);  // the more sizes, the fewer types follow each other
    const auto size = [&] { return int64_t{8} << pick(0, sizes - 1); };
    for (int i = 0; i < types; ++i) {
      const int64_t in = i == 0 ? size() : output_bytes(profile.block_types.back());
      profile.block_types.push_back(type(i, in, chance(3) ? in : size()));
    }
    const int length = pick(1, 4);
    for (int tries = 0; static_cast<int>(profile.chain.size()) < length && tries < 20; ++tries) {
      const int next = pick(0, types - 1);
      const bool fits =
          profile.chain.empty() || output_bytes(profile.block_types[profile.chain.back()]) ==
                                       profile.block_types[next].input_bytes;
      if (fits) profile.chain.push_back(next);
    }
    if (chance(4))
      profile.block_types[profile.chain[0]].input_grad = uses(profile, profile.chain[0]) > 1;
    if (profile.chain.size() > 1 && chance(2)) add_merge(profile);
    return profile;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int one_in) { return pick(1, one_in) == 1; }

  static int64_t output_bytes(const BlockType& type) {
    for (const ProfileOp& op : type.ops) {
      if (op.outs[0].name == type.output) return op.outs[0].bytes;
    }
    return 0;
  }

  static int uses(const Profile& profile, int type) {
    int count = 0;
    for (const int other : profile.chain) count += other == type ? 1 : 0;
    return count;
  }

  BlockType type(int index, int64_t in, int64_t out) {
    BlockType type;
    type.name = "t" + std::to_string(index);
    type.input_bytes = in;
    std::vector<std::string> made = {"in"};
    const int ops = pick(1, 4);
    for (int u = 0; u < ops; ++u) {
      ProfileOp op;
      op.name = type.name + ".op" + std::to_string(u);
      op.kind = "ew";
      op.fwd_us = chance(12) ? 0 : pick(1, 9);
      op.bwd_us = pick(0, 9);
      op.fwd_tmp_bytes = chance(3) ? 4 * pick(1, 6) : 0;
      op.bwd_tmp_bytes = chance(3) ? 4 * pick(1, 6) : 0;
      op.ins.push_back(chance(5) ? made[pick(0, static_cast<int>(made.size()) - 1)] : made.back());
      if (chance(3)) op.ins.push_back(made[pick(0, static_cast<int>(made.size()) - 1)]);
      const std::string out_name = type.name + "_" + std::to_string(u);
      const bool is_output = u + 1 == ops;
      op.outs.push_back({out_name, is_output ? out : 4 * pick(chance(9) ? 0 : 1, 8)});
      if (chance(3)) op.outs.push_back({"m" + out_name, 2 * pick(0, 4)});
      for (const std::string& candidate :
           {op.ins.front(), op.ins.back(), op.outs.front().name, op.outs.back().name}) {
        if (chance(candidate == op.outs.front().name ? 6 : 2)) op.bwd_needs.push_back(candidate);
      }
      made.push_back(out_name);
      type.ops.push_back(std::move(op));
    }
    type.output = type.ops.back().outs.front().name;
    return type;
  }

  /// Merges two neighbours into one region. Their tensors have different names unless they are of
  /// one type.
  void add_merge(Profile& profile) {
    const int at = pick(0, static_cast<int>(profile.chain.size()) - 2);
    const int first = profile.chain[at];
    const int second = profile.chain[at + 1];
    if (first == second) return;
    const BlockType& a = profile.block_types[first];
    BlockType merged = a;
    merged.name = "merged";
    for (ProfileOp op : profile.block_types[second].ops) {
      for (std::string& in : op.ins) in = in == "in" ? a.output : in;
      for (std::string& needed : op.bwd_needs) needed = needed == "in" ? a.output : needed;
      merged.ops.push_back(std::move(op));
    }
    merged.output = profile.block_types[second].output;
    profile.merge_patterns.push_back(
        {{first, second}, static_cast<int>(profile.block_types.size())});
    profile.block_types.push_back(std::move(merged));
  }

  std::mt19937& random_;
};

}  // namespace

Profile random_profile(std::mt19937& random) {
  return Maker(random).profile();
}

}  // namespace remat::test
