// SPDX-License-Identifier: BSD-3-Clause

// A JSON object with what the plan was made with, the profile and the plan.
#include <remat/memory_plan/memory_plan_file.h>

#include <nlohmann/json.hpp>

#include "json_rows.h"
#include "text_file.h"

namespace remat {

namespace {

constexpr const char* format_key = "remat_memory_plan";
constexpr int format_version = 1;

}  // namespace

std::string MemoryPlanFile::to_json() const {
  std::string text = "{\"" + std::string(format_key) + "\": " + std::to_string(format_version);
  text += ",\n\"made_with\": " + nlohmann::json(made_with).dump();
  text += ",\n\"profile\": " + plan.profile->to_json();
  text += ",\n\"plan\": " + plan.to_json() + "}\n";
  return text;
}

MemoryPlanFile MemoryPlanFile::from_json(std::string_view text, const std::string& source) {
  const detail::JsonNode root = detail::parse_json(text, "memory plan", source);
  const detail::JsonValue value(root, detail::memory_plan_place(source));
  value.check_members({format_key, "made_with", "profile", "plan"}, {});
  if (value.at(format_key).integer() != format_version)
    value.at(format_key).fail(std::to_string(format_version), value.at(format_key).shown());
  MemoryPlanFile file;
  for (const auto& [key, member] : value.at("made_with").members())
    file.made_with[key] = member.string();
  const StepProfile profile = detail::read_step_profile(
      *root.find("profile"), detail::memory_plan_place(source, "profile"));
  file.plan = detail::read_memory_plan(*root.find("plan"),
                                       detail::memory_plan_place(source, "plan"), profile);
  return file;
}

void MemoryPlanFile::save(const std::string& path) const {
  detail::write_text_file(path, to_json());
}

MemoryPlanFile MemoryPlanFile::load(const std::string& path) {
  return from_json(detail::read_text_file(path), path);
}

}  // namespace remat
