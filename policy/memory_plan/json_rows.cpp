// SPDX-License-Identifier: BSD-3-Clause

// 64-bit numbers as text, since not all JSON readers keep them exactly.
#include "json_rows.h"

namespace remat::detail {

uint64_t read_hex(const JsonValue& value) {
  const std::string text = value.string();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.fail("16 hex digits", value.shown());
  return std::stoull(text, nullptr, 16);
}

}  // namespace remat::detail
