// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a profile.
#include "profile_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>
#include <unordered_set>

#include <remat/planner/chain.h>

namespace remat::detail {

namespace {

constexpr int64_t max_bytes = int64_t{1} << 50;
constexpr double max_time_us = 1e9;
constexpr size_t max_regions = 4096;
constexpr size_t max_type_ops = 4096;

/// True if a name has no control characters, which terminals obey and XML forbids.
bool is_printable(const std::string& name) {
  for (size_t i = 0; i < name.size(); ++i) {
    const auto byte = [&](size_t k) {
      return static_cast<uint8_t>(name[std::min(k, name.size())]);
    };
    const bool is_c1 = byte(i) == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xA0;
    const bool is_noncharacter = byte(i) == 0xEF && byte(i + 1) == 0xBF && byte(i + 2) >= 0xBE;
    if (byte(i) < 0x20 || byte(i) == 0x7F || is_c1 || is_noncharacter) return false;
  }
  return true;
}

void check_printable(const std::string& path, const std::string& name) {
  if (is_printable(name)) return;
  throw Fault{path, "a name without control characters", "one that has some", "Leave them out."};
}

/// Checks one block type, tracking the tensors made so far.
class TypeCheck {
 public:
  TypeCheck(const BlockType& type, std::string path) : type_(type), path_(std::move(path)) {}

  void run() {
    bytes(path_ + ".input_bytes", "", type_.input_bytes);
    if (type_.ops.empty() || type_.ops.size() > max_type_ops) {
      fail(path_ + ".ops", "", "1 to 4096 ops", std::to_string(type_.ops.size()),
           "Leave the region out, or cut it.");
    }
    for (size_t i = 0; i < type_.ops.size(); ++i) {
      op(type_.ops[i], indexed(path_ + ".ops", i));
    }
    if (gradients_.count(type_.output) == 0) {
      fail(path_ + ".output", "", "the first out of an op", quoted(type_.output),
           "Name the next region's input.");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& op,
                         const std::string& expected, const std::string& got,
                         const std::string& advice) const {
    throw Fault{path, expected, got, advice,
                "type " + quoted(type_.name) + (op.empty() ? "" : ", op " + quoted(op))};
  }

  void bytes(const std::string& path, const std::string& op, int64_t value) {
    if (value >= 0 && value <= max_bytes) return;
    fail(path, op, "0 to 2^50 bytes", std::to_string(value), "Give bytes.");
  }

  void time(const std::string& path, const std::string& op, double value) {
    if (value > 0 && to_ticks(std::min(value, max_time_us)) == 0)
      fail(path, op, "0, or 1e-6 us or more", in_digits(value), "Give microseconds.");
    if (value >= 0 && value <= max_time_us) return;  // false for NaN
    fail(path, op, "0 to 1e9 us", in_digits(value), "Give microseconds.");
  }

  void op(const ProfileOp& op, const std::string& path) {
    check_printable(path + ".name", op.name);
    check_printable(path + ".kind", op.kind);
    if (op.name.empty() || !ops_.insert(op.name).second) {
      fail(path + ".name", op.name, "a name that no other op of the type has", quoted(op.name),
           "Number repeated ops.");
    }
    time(path + ".fwd", op.name, op.fwd_us);
    time(path + ".bwd", op.name, op.bwd_us);
    bytes(path + ".fwd_tmp", op.name, op.fwd_tmp_bytes);
    bytes(path + ".bwd_tmp", op.name, op.bwd_tmp_bytes);
    known(op.ins, path + ".ins", op.name);
    if (op.outs.empty()) {
      fail(path + ".outs", op.name, "one out or more", "none", "Leave the op out.");
    }
    for (size_t i = 0; i < op.outs.size(); ++i) {
      const std::string where = indexed(path + ".outs", i);
      check_printable(where, op.outs[i].name);
      if (op.outs[i].name.empty() || !tensors_.insert(op.outs[i].name).second) {
        fail(where, op.name, "a name that no other tensor of the type has", quoted(op.outs[i].name),
             "A view or an in-place result is its storage: leave it out.");
      }
      bytes(where, op.name, op.outs[i].bytes);
    }
    gradients_.insert(op.outs[0].name);
    known(op.bwd_needs, path + ".bwd_needs", op.name);
  }

  void known(const std::vector<std::string>& names, const std::string& path,
             const std::string& op) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (tensors_.count(names[i]) != 0) continue;
      fail(indexed(path, i), op, "\"in\" or a tensor made before", quoted(names[i]),
           "Correct the name or the order of ops.");
    }
  }

  const BlockType& type_;
  std::string path_;
  std::unordered_set<std::string> tensors_ = {"in"};
  std::unordered_set<std::string> gradients_;
  std::unordered_set<std::string> ops_;
};

std::string region(const Profile& profile, size_t position) {
  return "region " + std::to_string(position) + " " +
         quoted(profile.block_types[profile.chain[position]].name);
}

void check_chain(const Profile& profile) {
  const size_t types = profile.block_types.size();
  if (profile.chain.empty() || profile.chain.size() > max_regions) {
    throw Fault{"chain", "1 to 4096 regions", std::to_string(profile.chain.size()),
                "Merge regions."};
  }
  for (size_t i = 0; i < profile.chain.size(); ++i) {
    const int type = profile.chain[i];
    if (type >= 0 && static_cast<size_t>(type) < types) continue;
    throw Fault{indexed("chain", i), "an index into the " + std::to_string(types) + " block_types",
                std::to_string(type), "Correct it."};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    const int64_t given = output_bytes(profile.block_types[profile.chain[i - 1]]);
    const int64_t taken = profile.block_types[profile.chain[i]].input_bytes;
    if (given == taken) continue;
    throw Fault{indexed("chain", i),
                "an input of " + std::to_string(given) + " bytes, what " + region(profile, i - 1) +
                    " puts out",
                std::to_string(taken), "Correct input_bytes or the order.", region(profile, i)};
  }
  std::vector<char> passes;
  for (const BlockType& type : profile.block_types)
    passes.push_back(passes_gradient(to_block(type)) ? 1 : 0);
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (passes[profile.chain[i]]) continue;
    throw Fault{indexed("chain", i),
                "ops that lead from \"in\" to the output, each by its first out, through "
                "which the regions before get gradients",
                "none", "Name what each op reads in its ins.", region(profile, i)};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (profile.block_types[profile.chain[i]].input_grad) continue;
    throw Fault{indexed("chain", i), "input_grad after the first region", "none",
                "Only the first region may lack it.", region(profile, i)};
  }
}

/// Checks that each region, or each part of it, has few enough ops.
void check_parts(const Profile& profile) {
  std::vector<char> in_chain(profile.block_types.size(), 0);
  for (const int type : profile.chain) in_chain[type] = 1;
  for (size_t i = 0; i < profile.block_types.size(); ++i) {
    const BlockType& type = profile.block_types[i];
    if (!in_chain[i] || type.ops.size() <= max_region_ops) continue;
    const size_t ops = largest_part(to_block(type), split_above);
    if (ops <= max_region_ops) continue;
    throw Fault{indexed("block_types", i) + ".ops",
                "at most " + std::to_string(max_region_ops) +
                    " ops between places where a single tensor passes",
                std::to_string(ops), "Make more regions of it.", "type " + quoted(type.name)};
  }
}

constexpr const char* merge_advice = "A merged type is its pattern's ops, run as one region.";

bool is_same_op(const Block& a, const Block& b, size_t u) {
  const BlockOp& x = a.ops[u];
  const BlockOp& y = b.ops[u];
  const auto sorted = [](std::vector<int> tensors) {
    std::sort(tensors.begin(), tensors.end());
    return tensors;
  };
  const auto is_same_tensor = [&](int t) { return a.tensors[t].bytes == b.tensors[t].bytes; };
  return x.fwd == y.fwd && x.bwd == y.bwd && x.fwd_tmp == y.fwd_tmp && x.bwd_tmp == y.bwd_tmp &&
         sorted(x.ins) == sorted(y.ins) && x.outs == y.outs &&
         sorted(x.backward_needs) == sorted(y.backward_needs) &&
         std::all_of(x.outs.begin(), x.outs.end(), is_same_tensor);
}

/// Checks that a merged type has its pattern's ops, with all their numbers. Names of tensors may
/// differ. `types`: the profile's block types in numbers.
void check_merged_ops(const Profile& profile, const std::vector<Block>& types,
                      const MergePattern& merge, const std::string& path) {
  const BlockType& merged = profile.block_types[merge.block_type];
  const Block& numbers = types[merge.block_type];
  const Block expected = merged_block(types, merge.pattern);
  const auto fail = [&](const std::string& what, const std::string& got, const std::string& op) {
    throw Fault{path, what, got, merge_advice,
                "type " + quoted(merged.name) + (op.empty() ? "" : ", op " + quoted(op))};
  };
  size_t u = 0;
  for (const int type : merge.pattern) {
    for (const ProfileOp& part : profile.block_types[type].ops) {
      const std::string op = "op " + quoted(part.name) + " of the pattern";
      if (u == merged.ops.size()) fail(op, "no more ops", "");
      if (merged.ops[u].name != part.name) fail(op, quoted(merged.ops[u].name), "");
      if (!is_same_op(expected, numbers, u))
        fail("the pattern's times, bytes, ins, outs and bwd_needs", "others", part.name);
      ++u;
    }
  }
  if (u != merged.ops.size()) {
    fail(std::to_string(u) + " ops, those of the pattern", std::to_string(merged.ops.size()), "");
  }
  if (numbers.output != expected.output)
    fail("the output of the pattern's last region", quoted(merged.output), "");
}

void check_pattern(const Profile& profile, const std::vector<int>& pattern,
                   const std::string& path) {
  const int types = static_cast<int>(profile.block_types.size());
  if (pattern.size() < 2)
    throw Fault{path, "two regions or more", std::to_string(pattern.size()), merge_advice};
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] >= 0 && pattern[i] < types) continue;
    throw Fault{indexed(path, i), "an index into block_types", std::to_string(pattern[i]),
                merge_advice};
  }
  for (size_t i = 1; i < pattern.size(); ++i) {
    const int64_t given = output_bytes(profile.block_types[pattern[i - 1]]);
    const int64_t taken = profile.block_types[pattern[i]].input_bytes;
    if (given == taken) continue;
    throw Fault{
        indexed(path, i),
        "a type with an input of " + std::to_string(given) + " bytes, what the one before puts out",
        std::to_string(taken), merge_advice};
  }
}

void check_merge(const Profile& profile, const std::vector<Block>& types, const MergePattern& merge,
                 const std::string& path) {
  check_pattern(profile, merge.pattern, path + ".pattern");
  const std::string place = path + ".block_type";
  if (merge.block_type < 0 || merge.block_type >= static_cast<int>(profile.block_types.size())) {
    throw Fault{place, "an index into block_types", std::to_string(merge.block_type), merge_advice};
  }
  const BlockType& first = profile.block_types[merge.pattern.front()];
  const BlockType& merged = profile.block_types[merge.block_type];
  if (first.input_bytes != merged.input_bytes || first.input_grad != merged.input_grad) {
    throw Fault{place, "the pattern's input_bytes and input_grad", "others", merge_advice,
                "type " + quoted(merged.name)};
  }
  if (merged.ops.size() > max_region_ops) {
    throw Fault{place, "at most " + std::to_string(max_region_ops) + " ops",
                std::to_string(merged.ops.size()), "Leave the pattern out.",
                "type " + quoted(merged.name)};
  }
  check_merged_ops(profile, types, merge, place);
}

void check_merges(const Profile& profile) {
  const std::vector<Block> types = to_chain(profile).types;
  std::set<std::vector<int>> patterns;
  for (size_t i = 0; i < profile.merge_patterns.size(); ++i) {
    const MergePattern& merge = profile.merge_patterns[i];
    const std::string path = indexed("merge_patterns", i);
    check_merge(profile, types, merge, path);
    if (!patterns.insert(merge.pattern).second) {
      throw Fault{path + ".pattern", "a pattern that no other merge_pattern has",
                  "one given before", "Leave one out: a plan does not say which it means."};
    }
  }
}

/// Checks that sums cannot overflow, even if every region runs once for each region after it.
void check_totals(const Profile& profile) {
  double bytes = 0;
  for (const int type : profile.chain) {
    for (const ProfileOp& op : profile.block_types[type].ops) {
      bytes += static_cast<double>(op.fwd_tmp_bytes) + static_cast<double>(op.bwd_tmp_bytes);
      for (const ProfileTensor& out : op.outs) bytes += 2.0 * static_cast<double>(out.bytes);
    }
  }
  if (bytes > 1e17) {
    throw Fault{"chain", "1e17 bytes or less over all regions", in_digits(bytes), "Give bytes."};
  }
  const double time = ideal_time_us(profile) * static_cast<double>(profile.chain.size() + 2);
  if (time > 4e12) {
    throw Fault{"chain", "at most 4e12 us for all regions, run once per region behind them",
                in_digits(time), "Give microseconds."};
  }
}

}  // namespace

std::string in_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.10g", value);
  return text.data();
}

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

int64_t output_bytes(const BlockType& type) {
  for (const ProfileOp& op : type.ops) {
    if (op.outs[0].name == type.output) return op.outs[0].bytes;
  }
  return 0;
}

double ideal_time_us(const Profile& profile) {
  double sum = 0;
  for (const int type : profile.chain) {
    for (const ProfileOp& op : profile.block_types[type].ops) sum += op.fwd_us + op.bwd_us;
  }
  return sum;
}

void check_profile(const Profile& profile) {
  check_printable("name", profile.name);
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < profile.block_types.size(); ++i) {
    const BlockType& type = profile.block_types[i];
    const std::string path = indexed("block_types", i);
    check_printable(path + ".name", type.name);
    if (type.name.empty() || !names.insert(type.name).second) {
      throw Fault{path + ".name", "a name that no other type has", quoted(type.name),
                  "Number the types."};
    }
    TypeCheck(type, path).run();
  }
  check_chain(profile);
  check_parts(profile);
  check_merges(profile);
  check_totals(profile);
}

}  // namespace remat::detail
