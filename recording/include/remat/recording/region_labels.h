// SPDX-License-Identifier: BSD-3-Clause

// Labels of regions, names of calls, and labels in which stars stand for numbers.
#pragma once

#include <cctype>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include <remat/recording/recording.h>

namespace remat::detail {

/// Replaces each run of digits by a star: "layer.12" becomes "layer.*".
inline std::string folded_label(const std::string& label) {
  std::string folded;
  bool in_number = false;
  for (const char c : label) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) folded += c;
    if (is_digit && !in_number) folded += '*';
    in_number = is_digit;
  }
  return folded;
}

class RegionLabels {
 public:
  /// `recording` must outlive this object.
  explicit RegionLabels(const Recording& recording) : recording_(recording) {
    for (const auto& region : recording.regions) labels_.emplace(region.region, region.label);
    for (const auto& call : recording.calls)
      policies_.emplace(std::pair(call.region, call.name), call.policy);
  }

  /// The label of region 7, or "region 7" if the recording has no label of it. Empty for region 0.
  std::string of(uint64_t region) const {
    if (region == 0) return "";
    const auto known = labels_.find(region);
    return known == labels_.end() ? "region " + std::to_string(region)
                                  : recording_.text(known->second);
  }

  /// The call's name and policy, such as "gate (SAVE)".
  std::string call_of(uint64_t region, StringId name) const {
    const std::string& text = recording_.text(name);
    const auto policy = policies_.find({region, name});
    if (name == 0 || policy == policies_.end() || policy->second == 0) return text;
    return text + " (" + recording_.text(policy->second) + ")";
  }

 private:
  const Recording& recording_;
  std::unordered_map<uint64_t, StringId> labels_;
  std::map<std::pair<uint64_t, StringId>, StringId> policies_;
};

}  // namespace remat::detail
