// SPDX-License-Identifier: BSD-3-Clause

#include "report_words.h"

namespace remat::detail {

uint32_t ReportWords::number_of(const std::string& text) {
  constexpr size_t kMost = 400;
  const auto [known, is_new] = numbers_.emplace(text, static_cast<uint32_t>(all_.size()));
  if (is_new) all_.push_back(text.size() <= kMost ? text : text.substr(0, kMost) + "...");
  return known->second;
}

ReportLabels::ReportLabels(const Recording& recording) : recording_(recording), labels_(recording) {
  for (const auto& call : recording.calls) policies_[call.region].emplace(call.name, call.policy);
}

std::string ReportLabels::label_of(uint64_t region) const {
  return region == 0 ? "" : labels_.of(region);
}

std::string ReportLabels::call_of(uint64_t region, StringId name) const {
  const std::string& text = recording_.text(name);
  const auto calls = policies_.find(region);
  if (name == 0 || calls == policies_.end()) return text;
  const auto call = calls->second.find(name);
  if (call == calls->second.end() || call->second == 0) return text;
  return text + " (" + recording_.text(call->second) + ")";
}

}  // namespace remat::detail
