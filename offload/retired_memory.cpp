// SPDX-License-Identifier: BSD-3-Clause

#include "retired_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "copy_waits.h"

namespace remat::detail {

RetiredMemory::~RetiredMemory() {
  for (const Retired& retired : all_) wait_quietly(retired.until);
}

void RetiredMemory::add(Retired retired, Garbage& garbage) {
  if (!is_pending(retired.until)) {
    garbage.push_back(std::move(retired));
    return;
  }
  if (retired.storage && retired.until->may_go(retired.storage))
    garbage.push_back({.until = {}, .storage = std::move(retired.storage), .block = {}});
  all_.push_back(std::move(retired));
}

void RetiredMemory::settle(Garbage& garbage) {
  const auto done = std::partition(
      all_.begin(), all_.end(), [](const Retired& retired) { return is_pending(retired.until); });
  std::move(done, all_.end(), std::back_inserter(garbage));
  all_.erase(done, all_.end());
}

int64_t RetiredMemory::storage_bytes() const {
  int64_t bytes = 0;
  for (const Retired& retired : all_) {
    if (retired.storage) bytes += static_cast<int64_t>(retired.storage.nbytes());
  }
  return bytes;
}

}  // namespace remat::detail
