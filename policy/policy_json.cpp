// SPDX-License-Identifier: BSD-3-Clause

// JSON files of policy tables.
#include <remat/policy/policy_table.h>
#include <remat/policy/printable_text.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace remat {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr int kMaxDepth = 16;  // nlohmann's dump() is recursive
constexpr size_t kMaxShown = 200;

[[noreturn]] void reject(const std::string& where, const std::string& expected,
                         const std::string& got) {
  throw std::invalid_argument("[policy] " + where + ": expected " + expected + ", got " + got +
                              ". See docs/how-to/policies.md for the format.");
}

/// Shortens the text to kMaxShown bytes, without splitting a UTF-8 character.
std::string cut(std::string text) {
  if (text.size() <= kMaxShown) return text;
  size_t end = kMaxShown;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

std::string shown(const Json& value) {
  return cut(value.dump());
}

Policy policy_of(const std::string& where, const Json& value) {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute, Policy::kOffload}) {
    if (value.is_string() && value.get<std::string>() == policy_name(policy)) return policy;
  }
  reject(where + ", key 'policy'", "\"SAVE\", \"RECOMPUTE\" or \"OFFLOAD\"", shown(value));
}

std::string text_of(const std::string& where, const std::string& key, const Json& value) {
  if (!value.is_string()) reject(where + ", key '" + key + "'", "a string", shown(value));
  // A zero byte would end the text of an error that contains it.
  if (value.get_ref<const std::string&>().find('\0') != std::string::npos)
    reject(where + ", key '" + key + "'", "a string without zero bytes", shown(value));
  return value.get<std::string>();
}

/// Runs `add`, and adds the rule's place to errors, which only know the rule's text.
template <class Add>
void at_place(const std::string& where, Add&& add) {
  try {
    add();
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    const std::string head = "[policy] ";
    throw std::invalid_argument(head + where + ", " +
                                text.substr(text.starts_with(head) ? head.size() : 0));
  }
}

void read_rule(PolicyTable& table, const std::string& where, const Json& rule) {
  if (!rule.is_object()) reject(where, "an object", shown(rule));
  for (const auto& [key, value] : rule.items()) {
    if (key != "op" && key != "call" && key != "preset" && key != "policy")
      reject(where, "the keys 'op' or 'call' with 'policy', or 'preset'", "'" + cut(key) + "'");
  }
  if (rule.contains("preset")) {
    if (rule.size() != 1) reject(where, "no other key beside 'preset'", shown(rule));
    const std::string name = text_of(where, "preset", rule["preset"]);
    at_place(where, [&] { table.add(preset(name)); });
    return;
  }
  if (rule.contains("op") == rule.contains("call") || !rule.contains("policy"))
    reject(where, "one of 'op' and 'call', and 'policy'", shown(rule));
  const Policy policy = policy_of(where, rule["policy"]);
  const char* const kind = rule.contains("op") ? "op" : "call";
  const std::string pattern = text_of(where, kind, rule[kind]);
  PolicyTable one;
  at_place(where,
           [&] { rule.contains("op") ? one.op(pattern, policy) : one.call(pattern, policy); });
  table.add(one.from(where));
}

Json parse(std::string_view text, const std::string& source) {
  std::vector<std::unordered_set<std::string>> keys;  // keys of the open objects
  const auto check = [&](int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxDepth)
      reject(source, "at most 16 levels of brackets", "more");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && value.get_ref<const std::string&>().find('\0') != std::string::npos)
      reject(source, "keys without zero bytes", shown(value));
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      reject(source, "a key once in its object", "'" + cut(value.get<std::string>()) + "' twice");
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    reject(source, "JSON", cut(detail::as_printable(error.what())));
  }
}

}  // namespace

PolicyTable PolicyTable::load(const std::string& path) {
  std::ifstream file(path);
  file.peek();  // opening a folder succeeds; this fails
  if (!file.is_open() || file.bad())
    throw std::invalid_argument("[PolicyTable] load: expected a file that can be read, got '" +
                                path + "'.");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return from_json(text, path);
}

PolicyTable PolicyTable::from_json(std::string_view text, const std::string& source) {
  const Json root = parse(text, source);
  if (!root.is_object()) reject(source, "an object", root.type_name());
  for (const auto& [key, value] : root.items()) {
    if (key != "remat_policy" && key != "rules")
      reject(source, "the keys 'remat_policy' and 'rules'", "'" + cut(key) + "'");
  }
  if (!root.contains("remat_policy") || root["remat_policy"] != kVersion)
    reject(source, "\"remat_policy\": 1",
           root.contains("remat_policy") ? shown(root["remat_policy"]) : "none");
  if (!root.contains("rules") || !root["rules"].is_array())
    reject(source, "a list 'rules'", root.contains("rules") ? shown(root["rules"]) : "none");
  PolicyTable table;
  size_t number = 0;
  for (const Json& rule : root["rules"])
    read_rule(table, source + ", rule " + std::to_string(number++), rule);
  return table;
}

std::string PolicyTable::to_json() const {
  Json rules = Json::array();
  for (const PolicyRule& rule : rules_) {
    rules.push_back({{rule.kind == PolicyRule::Kind::kOp ? "op" : "call", rule.pattern},
                     {"policy", policy_name(rule.policy)}});
  }
  return Json{{"remat_policy", kVersion}, {"rules", std::move(rules)}}.dump(2);
}

}  // namespace remat
