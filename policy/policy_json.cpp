// SPDX-License-Identifier: BSD-3-Clause

// Policy tables as files.
#include <remat/policy/policy_table.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace remat {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

[[noreturn]] void reject(const std::string& where, const std::string& expected,
                         const std::string& got) {
  throw std::invalid_argument("[policy] " + where + ": expected " + expected + ", got " + got +
                              ". See docs/policies.md for the format.");
}

Policy policy_of(const std::string& where, const Json& value) {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute, Policy::kOffload}) {
    if (value.is_string() && value.get<std::string>() == policy_name(policy)) return policy;
  }
  reject(where + ", key 'policy'", "\"SAVE\", \"RECOMPUTE\" or \"OFFLOAD\"", value.dump());
}

std::string text_of(const std::string& where, const std::string& key, const Json& value) {
  if (!value.is_string()) reject(where + ", key '" + key + "'", "a string", value.dump());
  return value.get<std::string>();
}

void read_rule(PolicyTable& table, const std::string& where, const Json& rule) {
  if (!rule.is_object()) reject(where, "an object", rule.dump());
  for (const auto& [key, value] : rule.items()) {
    if (key != "op" && key != "call" && key != "preset" && key != "policy")
      reject(where, "the keys 'op' or 'call' with 'policy', or 'preset'", "'" + key + "'");
  }
  if (rule.contains("preset")) {
    if (rule.size() != 1) reject(where, "no other key beside 'preset'", rule.dump());
    table.add(preset(text_of(where, "preset", rule["preset"])));
    return;
  }
  if (rule.contains("op") == rule.contains("call") || !rule.contains("policy"))
    reject(where, "one of 'op' and 'call', and 'policy'", rule.dump());
  const Policy policy = policy_of(where, rule["policy"]);
  PolicyTable one;
  if (rule.contains("op")) {
    one.op(text_of(where, "op", rule["op"]), policy);
  } else {
    one.call(text_of(where, "call", rule["call"]), policy);
  }
  table.add(one.from(where));
}

Json parse(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    reject(source, "JSON", error.what());
  }
}

}  // namespace

PolicyTable PolicyTable::load(const std::string& path) {
  std::ifstream file(path);
  file.peek();  // a folder opens, and fails here
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
      reject(source, "the keys 'remat_policy' and 'rules'", "'" + key + "'");
  }
  if (!root.contains("remat_policy") || root["remat_policy"] != kVersion)
    reject(source, "\"remat_policy\": 1",
           root.contains("remat_policy") ? root["remat_policy"].dump() : "none");
  if (!root.contains("rules") || !root["rules"].is_array())
    reject(source, "a list 'rules'", root.contains("rules") ? root["rules"].dump() : "none");
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
