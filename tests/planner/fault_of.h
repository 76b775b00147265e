// SPDX-License-Identifier: BSD-3-Clause

// What a profile is refused for.
#pragma once

#include <stdexcept>
#include <string>

#include <remat/planner/profile.h>

namespace remat::test {

/// The error of `profile`, called "changed", once `change` has been done to it; or "no error".
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
