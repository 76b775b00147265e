// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a profile.
#include "profile_check.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "block.h"

namespace remat::detail {

namespace {

constexpr int64_t max_bytes = int64_t{1} << 50;
constexpr double max_time_us = 1e9;
constexpr size_t max_regions = 4096;
constexpr size_t max_type_ops = 4096;

using Fault = std::optional<ProfileFault>;

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

std::string indexed(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

/// Checks one block type. Remembers the tensors that ops have made so far.
class TypeCheck {
 public:
  TypeCheck(const BlockType& type, std::string path) : type_(type), path_(std::move(path)) {}

  Fault run() {
    if (Fault fault = bytes(path_ + ".input_bytes", "", type_.input_bytes)) return fault;
    if (type_.ops.empty() || type_.ops.size() > max_type_ops) {
      return at(path_ + ".ops", "", "1 to 4096 ops", std::to_string(type_.ops.size()),
                "Leave the region out, or cut it.");
    }
    for (size_t i = 0; i < type_.ops.size(); ++i) {
      if (Fault fault = op(type_.ops[i], indexed(path_ + ".ops", i))) return fault;
    }
    if (gradients_.count(type_.output) == 0) {
      return at(path_ + ".output", "", "the first out of an op", quoted(type_.output),
                "Name the next region's input.");
    }
    return std::nullopt;
  }

 private:
  ProfileFault at(std::string path, const std::string& op, std::string expected, std::string got,
                  std::string advice) {
    std::string place = "type " + quoted(type_.name) + (op.empty() ? "" : ", op " + quoted(op));
    return {std::move(path), std::move(place), std::move(expected), std::move(got),
            std::move(advice)};
  }

  Fault bytes(const std::string& path, const std::string& op, int64_t value) {
    if (value >= 0 && value <= max_bytes) return std::nullopt;
    return at(path, op, "0 to 2^50 bytes", std::to_string(value), "Give bytes.");
  }

  Fault time(const std::string& path, const std::string& op, double value) {
    if (value >= 0 && value <= max_time_us) return std::nullopt;  // A NaN is neither.
    return at(path, op, "0 to 1e9 us", std::to_string(value), "Give microseconds.");
  }

  Fault op(const ProfileOp& op, const std::string& path) {
    if (op.name.empty() || !ops_.insert(op.name).second) {
      return at(path + ".name", op.name, "a name that no other op of the type has", quoted(op.name),
                "Number repeated ops.");
    }
    if (Fault fault = time(path + ".fwd", op.name, op.fwd_us)) return fault;
    if (Fault fault = time(path + ".bwd", op.name, op.bwd_us)) return fault;
    if (Fault fault = bytes(path + ".fwd_tmp", op.name, op.fwd_tmp_bytes)) return fault;
    if (Fault fault = bytes(path + ".bwd_tmp", op.name, op.bwd_tmp_bytes)) return fault;
    if (Fault fault = known(op.ins, path + ".ins", op.name)) return fault;
    if (op.outs.empty()) {
      return at(path + ".outs", op.name, "one out or more", "none", "Leave the op out.");
    }
    for (size_t i = 0; i < op.outs.size(); ++i) {
      const std::string where = indexed(path + ".outs", i);
      if (op.outs[i].name.empty() || !tensors_.insert(op.outs[i].name).second) {
        return at(where, op.name, "a name that no other tensor of the type has",
                  quoted(op.outs[i].name),
                  "A view or an in-place result is its storage: leave it out.");
      }
      if (Fault fault = bytes(where, op.name, op.outs[i].bytes)) return fault;
    }
    gradients_.insert(op.outs[0].name);
    return known(op.bwd_needs, path + ".bwd_needs", op.name);
  }

  Fault known(const std::vector<std::string>& names, const std::string& path,
              const std::string& op) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (tensors_.count(names[i]) != 0) continue;
      return at(indexed(path, i), op, "\"in\" or a tensor made before", quoted(names[i]),
                "Correct the name or the order of ops.");
    }
    return std::nullopt;
  }

  const BlockType& type_;
  std::string path_;
  std::unordered_set<std::string> tensors_ = {"in"};
  std::unordered_set<std::string> gradients_;
  std::unordered_set<std::string> ops_;
};

int64_t output_bytes(const BlockType& type) {
  for (const ProfileOp& op : type.ops) {
    if (op.outs[0].name == type.output) return op.outs[0].bytes;
  }
  return 0;
}

bool reads_input(const BlockType& type) {
  return std::any_of(type.ops.begin(), type.ops.end(), [](const ProfileOp& op) {
    return std::find(op.ins.begin(), op.ins.end(), "in") != op.ins.end();
  });
}

std::string region(const Profile& profile, size_t position) {
  return "region " + std::to_string(position) + " " +
         quoted(profile.block_types[profile.chain[position]].name);
}

Fault check_chain(const Profile& profile) {
  const size_t types = profile.block_types.size();
  if (profile.chain.empty() || profile.chain.size() > max_regions) {
    return ProfileFault{"chain", "", "1 to 4096 regions", std::to_string(profile.chain.size()),
                        "Merge regions."};
  }
  for (size_t i = 0; i < profile.chain.size(); ++i) {
    const int type = profile.chain[i];
    if (type >= 0 && static_cast<size_t>(type) < types) continue;
    return ProfileFault{indexed("chain", i), "",
                        "an index into the " + std::to_string(types) + " block_types",
                        std::to_string(type), "Correct it."};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    const int64_t given = output_bytes(profile.block_types[profile.chain[i - 1]]);
    const int64_t taken = profile.block_types[profile.chain[i]].input_bytes;
    if (given == taken) continue;
    return ProfileFault{indexed("chain", i), region(profile, i),
                        "an input of " + std::to_string(given) + " bytes, what " +
                            region(profile, i - 1) + " puts out",
                        std::to_string(taken), "Correct input_bytes or the order."};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (reads_input(profile.block_types[profile.chain[i]])) continue;
    return ProfileFault{indexed("chain", i), region(profile, i),
                        "an op that reads \"in\", through which the regions before get gradients",
                        "none", "Name the input in an op's ins."};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (profile.block_types[profile.chain[i]].input_grad) continue;
    return ProfileFault{indexed("chain", i), region(profile, i),
                        "input_grad after the first region", "none",
                        "Only the first region may lack it."};
  }
  return std::nullopt;
}

Fault check_merge(const Profile& profile, const MergePattern& merge, const std::string& path) {
  const auto fault = [&](const std::string& key, const std::string& expected,
                         const std::string& got) {
    return ProfileFault{path + key, "", expected, got,
                        "A merged type is its pattern's ops, run as one region."};
  };
  const int types = static_cast<int>(profile.block_types.size());
  if (merge.block_type < 0 || merge.block_type >= types) {
    return fault(".block_type", "an index into block_types", std::to_string(merge.block_type));
  }
  if (merge.pattern.size() < 2)
    return fault(".pattern", "two regions or more", std::to_string(merge.pattern.size()));
  const BlockType& merged = profile.block_types[merge.block_type];
  std::vector<const ProfileOp*> parts;
  for (size_t i = 0; i < merge.pattern.size(); ++i) {
    const int type = merge.pattern[i];
    if (type < 0 || type >= types) {
      return fault(indexed(".pattern", i), "an index into block_types", std::to_string(type));
    }
    for (const ProfileOp& op : profile.block_types[type].ops) parts.push_back(&op);
  }
  const BlockType& first = profile.block_types[merge.pattern.front()];
  const BlockType& last = profile.block_types[merge.pattern.back()];
  const std::string merged_name = "block_type " + quoted(merged.name);
  if (first.input_bytes != merged.input_bytes || first.input_grad != merged.input_grad ||
      output_bytes(last) != output_bytes(merged)) {
    return fault(".block_type", "the pattern's input and output", "others in " + merged_name);
  }
  if (parts.size() != merged.ops.size()) {
    return fault(".block_type", std::to_string(parts.size()) + " ops, those of the pattern",
                 std::to_string(merged.ops.size()) + " in " + merged_name);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const ProfileOp& op = merged.ops[i];
    if (op.name == parts[i]->name && to_ticks(op.fwd_us) == to_ticks(parts[i]->fwd_us) &&
        to_ticks(op.bwd_us) == to_ticks(parts[i]->bwd_us)) {
      continue;
    }
    return fault(".block_type", "op " + quoted(parts[i]->name) + " with the pattern's fwd and bwd",
                 quoted(op.name) + " in " + merged_name + ", or other times");
  }
  return std::nullopt;
}

/// Sums stay far from overflow: every region may run forward once for each region behind it.
Fault check_totals(const Profile& profile) {
  double bytes = 0;
  for (const int type : profile.chain) {
    for (const ProfileOp& op : profile.block_types[type].ops) {
      bytes += static_cast<double>(op.fwd_tmp_bytes) + static_cast<double>(op.bwd_tmp_bytes);
      for (const ProfileTensor& out : op.outs) bytes += 2.0 * static_cast<double>(out.bytes);
    }
  }
  if (bytes > 1e17) {
    return ProfileFault{"chain", "", "1e17 bytes or less over all regions", std::to_string(bytes),
                        "Give bytes."};
  }
  const double time = ideal_time_us(profile) * static_cast<double>(profile.chain.size() + 2);
  if (time > 4e12) {
    return ProfileFault{"chain", "",
                        "at most 4e12 us for all regions, run once per region behind them",
                        std::to_string(time), "Give microseconds."};
  }
  return std::nullopt;
}

}  // namespace

double ideal_time_us(const Profile& profile) {
  double sum = 0;
  for (const int type : profile.chain) {
    for (const ProfileOp& op : profile.block_types[type].ops) sum += op.fwd_us + op.bwd_us;
  }
  return sum;
}

Fault find_fault(const Profile& profile) {
  if (!(profile.link_gbps >= 0 && profile.link_gbps <= 1e6)) {
    return ProfileFault{"link_gbps", "", "0 to 1e6 GB/s", std::to_string(profile.link_gbps),
                        "0 means no OFFLOAD."};
  }
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < profile.block_types.size(); ++i) {
    const BlockType& type = profile.block_types[i];
    const std::string path = indexed("block_types", i);
    if (type.name.empty() || !names.insert(type.name).second) {
      return ProfileFault{path + ".name", "", "a name that no other type has", quoted(type.name),
                          "Number the types."};
    }
    if (Fault fault = TypeCheck(type, path).run()) return fault;
  }
  if (Fault fault = check_chain(profile)) return fault;
  for (size_t i = 0; i < profile.merge_patterns.size(); ++i) {
    if (Fault fault = check_merge(profile, profile.merge_patterns[i], indexed("merge_patterns", i)))
      return fault;
  }
  return check_totals(profile);
}

void raise_fault(const ProfileFault& fault, const std::string& where) {
  const std::string place =
      fault.place.empty() ? fault.path : fault.path + " (" + fault.place + ")";
  throw std::invalid_argument("[profile] " + where + ": " + place + ": expected " + fault.expected +
                              ", got " + fault.got + ". " + fault.advice);
}

}  // namespace remat::detail
