// SPDX-License-Identifier: BSD-3-Clause

// What regions are called.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <remat/recording/recording.h>

namespace remat::detail {

class RegionLabels {
 public:
  /// `recording` lives longer than this.
  explicit RegionLabels(const Recording& recording) : recording_(recording) {
    for (const auto& region : recording.regions) labels_.emplace(region.region, region.label);
  }

  /// "region 7" where the recording does not tell.
  std::string of(uint64_t region) const {
    const auto known = labels_.find(region);
    return known == labels_.end() ? "region " + std::to_string(region)
                                  : recording_.text(known->second);
  }

 private:
  const Recording& recording_;
  std::unordered_map<uint64_t, StringId> labels_;
};

}  // namespace remat::detail
