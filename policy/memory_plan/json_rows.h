// SPDX-License-Identifier: BSD-3-Clause

// The common part of the JSON of profiles and plans: one line per row, range-checked numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/planner/digest.h>
#include <remat/planner/json_tree.h>

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

inline int32_t read_int32(const JsonValue& value, int32_t least = 0) {
  const int64_t number = value.integer();
  if (number < least || number > std::numeric_limits<int32_t>::max())
    value.fail("a number from " + std::to_string(least) + " on", value.shown());
  return static_cast<int32_t>(number);
}

inline std::vector<int32_t> read_int32s(const JsonValue& value, int32_t least = 0) {
  std::vector<int32_t> all;
  for (const JsonValue& item : value.items()) all.push_back(read_int32(item, least));
  return all;
}

/// Reads an array of exactly `size` values.
inline std::vector<JsonValue> read_row(const JsonValue& value, size_t size) {
  std::vector<JsonValue> row = value.items();
  if (row.size() != size) value.fail("an array of " + std::to_string(size), value.shown());
  return row;
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
