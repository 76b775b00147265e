// SPDX-License-Identifier: BSD-3-Clause

// Text of a report, each piece once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/recording/recording.h>

#include "region_labels.h"

namespace remat::detail {

/// Pieces of text and their numbers, from 0: "".
class ReportWords {
 public:
  ReportWords() { number_of(""); }

  /// What is longer than a few lines is cut.
  uint32_t number_of(const std::string& text);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

/// What the regions and calls of a recording are called.
class ReportLabels {
 public:
  explicit ReportLabels(const Recording& recording);

  /// "": no region. "region 7": the recording was not told of it.
  std::string label_of(uint64_t region) const;
  /// "gate (SAVE)": its name and its policy.
  std::string call_of(uint64_t region, StringId name) const;

 private:
  const Recording& recording_;
  const RegionLabels labels_;
  std::unordered_map<uint64_t, std::unordered_map<StringId, StringId>> policies_;
};

}  // namespace remat::detail
