// SPDX-License-Identifier: BSD-3-Clause

// Labels of regions by their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <remat/recording/recording.h>

namespace remat::detail {

class RegionLabels {
 public:
  /// `recording` must outlive this object.
  explicit RegionLabels(const Recording& recording) : recording_(recording) {
    for (const auto& region : recording.regions) labels_.emplace(region.region, region.label);
  }

  /// The region's label; "region 7" if the recording has none.
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
