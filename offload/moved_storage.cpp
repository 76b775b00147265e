// SPDX-License-Identifier: BSD-3-Clause

#include "moved_storage.h"

#include <c10/util/StringUtil.h>

namespace remat::detail {

std::string MovedStorage::what() const {
  const std::string where = region.empty() ? "region without a name" : "region '" + region + "'";
  return c10::str(where, call.empty() ? "" : ", call '" + call + "'", " (", bytes, " bytes)");
}

}  // namespace remat::detail
