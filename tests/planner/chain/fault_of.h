// SPDX-License-Identifier: BSD-3-Clause

// The error by which a changed profile is refused.
#pragma once

#include <stdexcept>
#include <string>

#include <remat/planner/profile.h>

namespace remat::test {

/// Returns the error of `profile`, called "changed", after `change` was applied to it; or "no
/// error".
template <typename Change>
std::string fault_of(Profile profile, Change change) {
  change(profile);
  try {
    profile.validate("changed");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace remat::test
