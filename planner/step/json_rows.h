// SPDX-License-Identifier: BSD-3-Clause

// Shared by the JSON of profiles and of plans: files with a line per row, and their readers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <remat/planner/digest.h>
#include <remat/planner/memory_plan.h>
#include <remat/planner/step_profile.h>
#include <remat/policy/json_tree.h>

namespace remat::detail {

/// Writes an object member by member.
class JsonRows {
 public:
  void add(const std::string& key, const nlohmann::ordered_json& value) {
    text_ += (text_.empty() ? "{\n " : ",\n ") + quoted(key) + ": " + dumped(value);
  }
  void add_rows(const std::string& key, const std::vector<nlohmann::ordered_json>& rows) {
    std::string all;
    for (const nlohmann::ordered_json& row : rows)
      all += (all.empty() ? "\n  " : ",\n  ") + dumped(row);
    text_ += (text_.empty() ? "{\n " : ",\n ") + quoted(key) + ": [" + all + "]";
  }
  std::string take() { return std::move(text_) + "\n}\n"; }

 private:
  static std::string dumped(const nlohmann::ordered_json& value) {
    return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  static std::string quoted(const std::string& key) { return "\"" + key + "\""; }

  std::string text_;
};

inline JsonValue memory_plan_value(const JsonNode& node, const std::string& source,
                                   const std::string& path = "",
                                   const std::string& advice = "Write the file again.") {
  return {node, "memory plan", source, path, advice};
}

/// The readers behind from_json().
StepProfile read_step_profile(const JsonValue& value);
MemoryPlan read_memory_plan(const JsonNode& root, const std::string& source,
                            const std::string& path, const StepProfile& profile);

uint64_t read_hex(const JsonValue& value);  ///< Reads text of hex_text()

/// Reads a file. @throws std::runtime_error `[memory plan] path: ...` if it cannot be read.
std::string read_text_file(const std::string& path);

/// Writes a file. An existing file is replaced only after all is written.
/// @throws std::runtime_error `[memory plan] path: ...` on failure.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace remat::detail
