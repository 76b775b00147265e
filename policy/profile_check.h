// SPDX-License-Identifier: BSD-3-Clause

// What a profile must fulfil, as a search for the first fault.
#pragma once

#include <optional>
#include <string>

#include <remat/policy/profile.h>

namespace remat::detail {

struct ProfileFault {
  std::string path;   ///< "block_types[1].ops[0].ins[2]", as in the JSON
  std::string place;  ///< The same in names: "type 'attn', op 'attn.av'"; may be empty.
  std::string expected;
  std::string got;
  std::string advice;  ///< What to do, a sentence.
};

std::optional<ProfileFault> find_fault(const Profile& profile);

/// @throws std::invalid_argument that begins with "[profile] " and `where`.
[[noreturn]] void raise_fault(const ProfileFault& fault, const std::string& where);

/// Sum of fwd and bwd over the chain: what a step takes when nothing runs twice.
double ideal_time_us(const Profile& profile);

}  // namespace remat::detail
