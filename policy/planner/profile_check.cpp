// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a profile.
#include "profile_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include <remat/planner/split_chain.h>
#include "profile_chain.h"

namespace remat::detail {

namespace {

constexpr int64_t max_bytes = int64_t{1} << 50;
constexpr double max_time_us = 1e9;
constexpr size_t max_regions = 4096;
constexpr size_t max_type_ops = 4096;

using Fault = std::optional<ProfileFault>;

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

Fault check_printable(const std::string& path, const std::string& name) {
  if (is_printable(name)) return std::nullopt;
  return ProfileFault{path, "", "a name without control characters", "one that has some",
                      "Leave them out."};
}

/// Checks one block type, tracking the tensors made so far.
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
    if (value > 0 && to_ticks(std::min(value, max_time_us)) == 0)
      return at(path, op, "0, or 1e-6 us or more", in_digits(value), "Give microseconds.");
    if (value >= 0 && value <= max_time_us) return std::nullopt;  // false for NaN
    return at(path, op, "0 to 1e9 us", in_digits(value), "Give microseconds.");
  }

  Fault op(const ProfileOp& op, const std::string& path) {
    if (Fault fault = check_printable(path + ".name", op.name)) return fault;
    if (Fault fault = check_printable(path + ".kind", op.kind)) return fault;
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
      if (Fault fault = check_printable(where, op.outs[i].name)) return fault;
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
  std::vector<char> passes;
  for (const BlockType& type : profile.block_types)
    passes.push_back(passes_gradient(to_block(type)) ? 1 : 0);
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (passes[profile.chain[i]]) continue;
    return ProfileFault{indexed("chain", i), region(profile, i),
                        "ops that lead from \"in\" to the output, each by its first out, through "
                        "which the regions before get gradients",
                        "none", "Name what each op reads in its ins."};
  }
  for (size_t i = 1; i < profile.chain.size(); ++i) {
    if (profile.block_types[profile.chain[i]].input_grad) continue;
    return ProfileFault{indexed("chain", i), region(profile, i),
                        "input_grad after the first region", "none",
                        "Only the first region may lack it."};
  }
  return std::nullopt;
}

/// Checks that each region, or each part of it, has few enough ops.
Fault check_parts(const Profile& profile) {
  std::vector<char> in_chain(profile.block_types.size(), 0);
  for (const int type : profile.chain) in_chain[type] = 1;
  for (size_t i = 0; i < profile.block_types.size(); ++i) {
    const BlockType& type = profile.block_types[i];
    if (!in_chain[i] || type.ops.size() <= max_region_ops) continue;
    const size_t ops = largest_part(to_block(type), split_above);
    if (ops <= max_region_ops) continue;
    return ProfileFault{indexed("block_types", i) + ".ops", "type " + quoted(type.name),
                        "at most " + std::to_string(max_region_ops) +
                            " ops between places where a single tensor passes",
                        std::to_string(ops), "Make more regions of it."};
  }
  return std::nullopt;
}

/// Keeps sums far from overflow: every region may run forward once for each region behind it.
Fault check_totals(const Profile& profile) {
  double bytes = 0;
  for (const int type : profile.chain) {
    for (const ProfileOp& op : profile.block_types[type].ops) {
      bytes += static_cast<double>(op.fwd_tmp_bytes) + static_cast<double>(op.bwd_tmp_bytes);
      for (const ProfileTensor& out : op.outs) bytes += 2.0 * static_cast<double>(out.bytes);
    }
  }
  if (bytes > 1e17) {
    return ProfileFault{"chain", "", "1e17 bytes or less over all regions", in_digits(bytes),
                        "Give bytes."};
  }
  const double time = ideal_time_us(profile) * static_cast<double>(profile.chain.size() + 2);
  if (time > 4e12) {
    return ProfileFault{"chain", "",
                        "at most 4e12 us for all regions, run once per region behind them",
                        in_digits(time), "Give microseconds."};
  }
  return std::nullopt;
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

std::string indexed(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
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

Fault find_fault(const Profile& profile) {
  if (Fault fault = check_printable("name", profile.name)) return fault;
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < profile.block_types.size(); ++i) {
    const BlockType& type = profile.block_types[i];
    const std::string path = indexed("block_types", i);
    if (Fault fault = check_printable(path + ".name", type.name)) return fault;
    if (type.name.empty() || !names.insert(type.name).second) {
      return ProfileFault{path + ".name", "", "a name that no other type has", quoted(type.name),
                          "Number the types."};
    }
    if (Fault fault = TypeCheck(type, path).run()) return fault;
  }
  if (Fault fault = check_chain(profile)) return fault;
  if (Fault fault = check_parts(profile)) return fault;
  if (Fault fault = check_merges(profile)) return fault;
  return check_totals(profile);
}

void raise_fault(const ProfileFault& fault, const std::string& where) {
  const std::string place =
      fault.place.empty() ? fault.path : fault.path + " (" + fault.place + ")";
  throw std::invalid_argument("[profile] " + where + ": " + place + ": expected " + fault.expected +
                              ", got " + fault.got + ". " + fault.advice);
}

}  // namespace remat::detail
