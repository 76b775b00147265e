// SPDX-License-Identifier: BSD-3-Clause

#include <remat/engine/named_call.h>

#include <c10/util/StringUtil.h>

namespace remat {

uint64_t NamedCall::hash() const {
  return std::hash<std::string>()(name) * 4 + static_cast<uint64_t>(policy);
}

std::string NamedCall::str() const {
  return c10::str("call '", name, "' (", policy_name(policy), ")");
}

}  // namespace remat
