// SPDX-License-Identifier: BSD-3-Clause

// The checks of profiles, as a search for the first fault.
#pragma once

#include <optional>
#include <string>

#include <remat/planner/profile.h>

namespace remat::detail {

struct ProfileFault {
  std::string path;   ///< Path as in the JSON, "block_types[1].ops[0].ins[2]"
  std::string place;  ///< The path in names, "type 'attn', op 'attn.av'"; may be empty
  std::string expected;
  std::string got;
  std::string advice;  ///< What to do, as a sentence
};

std::optional<ProfileFault> find_fault(const Profile& profile);

/// Checks merge_patterns only. Types and chain must have no fault.
std::optional<ProfileFault> check_merges(const Profile& profile);

/// @throws std::invalid_argument that begins with "[profile] " and `where`.
[[noreturn]] void raise_fault(const ProfileFault& fault, const std::string& where);

/// Sum of fwd and bwd over the chain: the time of a step in which nothing runs twice.
double ideal_time_us(const Profile& profile);

int64_t output_bytes(const BlockType& type);

/// A number with at most ten digits: "0.5", "1e+300".
std::string in_digits(double value);

/// Parts of fault texts: "'attn'" and "chain[3]".
std::string quoted(const std::string& name);
std::string indexed(const std::string& path, size_t index);

}  // namespace remat::detail
