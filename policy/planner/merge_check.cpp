// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a profile's merge patterns: a merged type must have its pattern's ops,
// with all their numbers.
#include <algorithm>
#include <set>
#include <unordered_map>

#include <remat/planner/block.h>
#include "profile_check.h"

namespace remat::detail {

namespace {

using Fault = std::optional<ProfileFault>;

constexpr const char* advice = "A merged type is its pattern's ops, run as one region.";

/// Compares a merged type op by op with the regions it stands for. Its tensors may have other
/// names: only their makers and readers matter.
class MergeCheck {
 public:
  MergeCheck(const BlockType& merged, std::string path)
      : merged_(merged), path_(std::move(path)), input_("in") {}

  Fault region(const BlockType& part) {
    names_ = {{"in", input_}};
    for (const ProfileOp& op : part.ops) {
      if (Fault fault = this->op(op)) return fault;
    }
    input_ = names_[part.output];
    return std::nullopt;
  }

  Fault end() const {
    if (next_ != merged_.ops.size()) {
      return at("", std::to_string(next_) + " ops, those of the pattern",
                std::to_string(merged_.ops.size()));
    }
    if (merged_.output != input_)
      return at("", "the output " + quoted(input_), quoted(merged_.output));
    return std::nullopt;
  }

 private:
  ProfileFault at(const std::string& place, const std::string& expected,
                  const std::string& got) const {
    return {path_ + ".block_type", "type " + quoted(merged_.name) + place, expected, got, advice};
  }

  Fault op(const ProfileOp& part) {
    if (next_ == merged_.ops.size())
      return at("", "op " + quoted(part.name) + " of the pattern", "no more ops");
    const ProfileOp& op = merged_.ops[next_++];
    const std::string place = ", op " + quoted(op.name);
    if (op.name != part.name)
      return at("", "op " + quoted(part.name) + " of the pattern", quoted(op.name));
    const auto differs = [&](const char* key, auto ours, auto theirs) -> Fault {
      if (ours == theirs) return std::nullopt;
      return at(place, std::string(key) + " " + std::to_string(theirs) + ", the pattern's",
                std::to_string(ours));
    };
    if (to_ticks(op.fwd_us) != to_ticks(part.fwd_us)) return differs("fwd", op.fwd_us, part.fwd_us);
    if (to_ticks(op.bwd_us) != to_ticks(part.bwd_us)) return differs("bwd", op.bwd_us, part.bwd_us);
    if (Fault fault = differs("fwd_tmp", op.fwd_tmp_bytes, part.fwd_tmp_bytes)) return fault;
    if (Fault fault = differs("bwd_tmp", op.bwd_tmp_bytes, part.bwd_tmp_bytes)) return fault;
    if (Fault fault = reads(place, "ins", op.ins, part.ins)) return fault;
    if (Fault fault = differs("number of outs", op.outs.size(), part.outs.size())) return fault;
    for (size_t i = 0; i < op.outs.size(); ++i) {
      names_[part.outs[i].name] = op.outs[i].name;
      const std::string key = "bytes of outs[" + std::to_string(i) + "]";
      if (Fault fault = differs(key.c_str(), op.outs[i].bytes, part.outs[i].bytes)) return fault;
    }
    return reads(place, "bwd_needs", op.bwd_needs, part.bwd_needs);
  }

  Fault reads(const std::string& place, const char* key, const std::vector<std::string>& ours,
              const std::vector<std::string>& theirs) {
    std::set<std::string> expected;
    for (const std::string& name : theirs) expected.insert(names_.at(name));
    const std::set<std::string> got(ours.begin(), ours.end());
    if (got == expected) return std::nullopt;
    return at(place, std::string(key) + " " + listed(expected) + ", the pattern's", listed(got));
  }

  static std::string listed(const std::set<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + quoted(name);
    return "[" + all + "]";
  }

  const BlockType& merged_;
  std::string path_;
  std::string input_;  // the next region's input in the merged type
  std::unordered_map<std::string, std::string>
      names_;        // names of the region's tensors in the merged type
  size_t next_ = 0;  // op of the merged type
};

Fault check_pattern(const Profile& profile, const std::vector<int>& pattern,
                    const std::string& path) {
  const int types = static_cast<int>(profile.block_types.size());
  if (pattern.size() < 2)
    return ProfileFault{path, "", "two regions or more", std::to_string(pattern.size()), advice};
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] >= 0 && pattern[i] < types) continue;
    return ProfileFault{indexed(path, i), "", "an index into block_types",
                        std::to_string(pattern[i]), advice};
  }
  for (size_t i = 1; i < pattern.size(); ++i) {
    const int64_t given = output_bytes(profile.block_types[pattern[i - 1]]);
    const int64_t taken = profile.block_types[pattern[i]].input_bytes;
    if (given == taken) continue;
    return ProfileFault{
        indexed(path, i), "",
        "a type with an input of " + std::to_string(given) + " bytes, what the one before puts out",
        std::to_string(taken), advice};
  }
  return std::nullopt;
}

Fault check_merge(const Profile& profile, const MergePattern& merge, const std::string& path) {
  if (Fault fault = check_pattern(profile, merge.pattern, path + ".pattern")) return fault;
  const std::string place = path + ".block_type";
  if (merge.block_type < 0 || merge.block_type >= static_cast<int>(profile.block_types.size())) {
    return ProfileFault{place, "", "an index into block_types", std::to_string(merge.block_type),
                        advice};
  }
  const BlockType& first = profile.block_types[merge.pattern.front()];
  const BlockType& merged = profile.block_types[merge.block_type];
  if (first.input_bytes != merged.input_bytes || first.input_grad != merged.input_grad) {
    return ProfileFault{place, "type " + quoted(merged.name),
                        "the pattern's input_bytes and input_grad", "others", advice};
  }
  if (merged.ops.size() > max_region_ops) {
    return ProfileFault{place, "type " + quoted(merged.name),
                        "at most " + std::to_string(max_region_ops) + " ops",
                        std::to_string(merged.ops.size()), "Leave the pattern out."};
  }
  MergeCheck check(merged, path);
  for (const int type : merge.pattern) {
    if (Fault fault = check.region(profile.block_types[type])) return fault;
  }
  return check.end();
}

}  // namespace

Fault check_merges(const Profile& profile) {
  std::set<std::vector<int>> patterns;
  for (size_t i = 0; i < profile.merge_patterns.size(); ++i) {
    const MergePattern& merge = profile.merge_patterns[i];
    const std::string path = indexed("merge_patterns", i);
    if (Fault fault = check_merge(profile, merge, path)) return fault;
    if (!patterns.insert(merge.pattern).second) {
      return ProfileFault{path + ".pattern", "", "a pattern that no other merge_pattern has",
                          "one given before", "Leave one out: a plan does not say which it means."};
    }
  }
  return std::nullopt;
}

}  // namespace remat::detail
