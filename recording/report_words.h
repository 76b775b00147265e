// SPDX-License-Identifier: BSD-3-Clause

// The texts of a report, each stored once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/recording/recording.h>

#include "region_labels.h"

namespace remat::detail {

/// Numbers texts from 0, which is the empty text.
class ReportWords {
 public:
  ReportWords() { number_of(""); }

  /// Text longer than a few lines is cut.
  uint32_t number_of(const std::string& text);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

/// The names of a recording's regions and calls.
class ReportLabels {
 public:
  explicit ReportLabels(const Recording& recording);

  /// Empty for no region; "region 7" if the recording has no label for it.
  std::string label_of(uint64_t region) const;
  /// The call's name and policy, such as "gate (SAVE)".
  std::string call_of(uint64_t region, StringId name) const;

 private:
  const Recording& recording_;
  const RegionLabels labels_;
  std::unordered_map<uint64_t, std::unordered_map<StringId, StringId>> policies_;
};

}  // namespace remat::detail
