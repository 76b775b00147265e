// SPDX-License-Identifier: BSD-3-Clause

// JSON files of policy tables.
#include <remat/policy/json_tree.h>
#include <remat/policy/policy_table.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace remat {
namespace {

using detail::JsonValue;
using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kAdvice = "See docs/how-to/policies.md for the format.";

Policy policy_of(const JsonValue& value) {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute, Policy::kOffload}) {
    if (value.string() == policy_name(policy)) return policy;
  }
  value.fail("\"SAVE\", \"RECOMPUTE\" or \"OFFLOAD\"", value.shown());
}

PolicyTable table_of(const JsonValue& rule) {
  if (rule.has("preset")) {
    rule.check_members({"preset"}, {});
    return preset(rule.at("preset").string());
  }
  const bool is_op = rule.has("op");
  if (!is_op && !rule.has("call"))
    rule.fail("an object with \"op\", \"call\" or \"preset\"", rule.shown());
  rule.check_members({is_op ? "op" : "call", "policy"}, {});
  const Policy policy = policy_of(rule.at("policy"));
  PolicyTable table;
  return is_op ? table.op(rule.at("op").string(), policy)
               : table.call(rule.at("call").string(), policy);
}

/// Adds the rule to the table. If that throws an error that knows only the rule's text, adds the
/// rule's place in the file to the error.
void append_rule(PolicyTable& table, const JsonValue& rule, const std::string& where) {
  try {
    PolicyTable added = table_of(rule);
    table.add(rule.has("preset") ? added : added.from(where));
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    const std::string head = "[policy] ";
    if (text.starts_with(head + rule.source())) throw;
    throw std::invalid_argument(head + where + ", " + text.substr(head.size()));
  }
}

}  // namespace

PolicyTable PolicyTable::load(const std::string& path) {
  std::ifstream file(path);
  file.peek();  // opening a folder succeeds, but peek() fails
  if (!file.is_open() || file.bad())
    throw std::invalid_argument("[PolicyTable] load: expected a file that can be read, got '" +
                                path + "'.");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return from_json(text, path);
}

PolicyTable PolicyTable::from_json(std::string_view text, const std::string& source) {
  const detail::JsonNode tree = detail::parse_json(text, "policy", source);
  const JsonValue root(tree, "policy", source, "", kAdvice);
  root.check_members({"remat_policy", "rules"}, {});
  const JsonValue version = root.at("remat_policy");
  if (version.integer() != kVersion) version.fail("1", version.shown());
  PolicyTable table;
  size_t number = 0;
  for (const JsonValue& rule : root.at("rules").items())
    append_rule(table, rule, source + ", rule " + std::to_string(number++));
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
