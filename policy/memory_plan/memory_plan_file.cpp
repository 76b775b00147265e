// SPDX-License-Identifier: BSD-3-Clause

// Three members: what it was made with, the profile, the plan.
#include <remat/memory_plan/memory_plan_file.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "json_rows.h"

namespace remat {

namespace {

constexpr const char* format_key = "remat_memory_plan";
constexpr int format_version = 1;

[[noreturn]] void refuse(const std::string& path, const std::string& what, int error) {
  throw std::runtime_error("[memory plan] " + path + ": expected a file that can be " + what +
                           ", got: " + std::generic_category().message(error) +
                           ". Give another path.");
}

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
  const nlohmann::ordered_json all = nlohmann::ordered_json::parse(text);
  const StepProfile profile =
      StepProfile::from_json(all.at("profile").dump(), source + ", \"profile\"");
  file.plan = MemoryPlan::from_json(all.at("plan").dump(), profile, source + ", \"plan\"");
  return file;
}

void MemoryPlanFile::save(const std::string& path) const {
  const std::string unfinished = path + ".unfinished";
  {
    std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
    out << to_json();
    out.flush();
    if (!out) refuse(path, "written", errno);
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(unfinished.c_str());
    refuse(path, "written", error);
  }
}

MemoryPlanFile MemoryPlanFile::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "read", errno);
  std::ostringstream text;
  text << in.rdbuf();
  return from_json(text.str(), path);
}

}  // namespace remat
