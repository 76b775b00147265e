// SPDX-License-Identifier: BSD-3-Clause

// What a profile must fulfil, as a search for the first fault.
#pragma once

#include <optional>
#include <string>

#include <remat/planner/profile.h>

namespace remat::detail {

struct ProfileFault {
  std::string path;   ///< "block_types[1].ops[0].ins[2]", as in the JSON
  std::string place;  ///< The same in names: "type 'attn', op 'attn.av'"; may be empty.
  std::string expected;
  std::string got;
  std::string advice;  ///< What to do, a sentence.
};

std::optional<ProfileFault> find_fault(const Profile& profile);

/// The part of it that is about merge_patterns; types and chain must have no fault.
std::optional<ProfileFault> check_merges(const Profile& profile);

/// @throws std::invalid_argument that begins with "[profile] " and `where`.
[[noreturn]] void raise_fault(const ProfileFault& fault, const std::string& where);

/// Sum of fwd and bwd over the chain: what a step takes when nothing runs twice.
double ideal_time_us(const Profile& profile);

int64_t output_bytes(const BlockType& type);

/// "0.5", "1e+300": at most ten digits.
std::string in_digits(double value);

/// "'attn'" and "chain[3]", for faults.
std::string quoted(const std::string& name);
std::string indexed(const std::string& path, size_t index);

}  // namespace remat::detail
