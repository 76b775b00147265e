// SPDX-License-Identifier: BSD-3-Clause

// Names of policies.
#include <remat/policy/policy.h>

namespace remat {

const char* policy_name(Policy policy) {
  switch (policy) {
    case Policy::kSave:
      return "SAVE";
    case Policy::kRecompute:
      return "RECOMPUTE";
    case Policy::kOffload:
      return "OFFLOAD";
  }
  return "no policy";
}

}  // namespace remat
