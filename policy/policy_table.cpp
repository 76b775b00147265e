// SPDX-License-Identifier: BSD-3-Clause

// Matching of op patterns, and the choice of the rule that decides.
#include <remat/policy/policy_table.h>

#include <fnmatch.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace remat {
namespace {

bool has_wildcard(const std::string& text) {
  return text.find_first_of("*?[") != std::string::npos;
}

bool matches(const std::string& glob, std::string_view text) {
  if (!has_wildcard(glob)) return glob == text;
  return ::fnmatch(glob.c_str(), std::string(text).c_str(), 0) == 0;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string take_prefix(const std::string& text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

[[noreturn]] void reject(const std::string& pattern) {
  throw std::invalid_argument(
      "[policy] op rule '" + pattern +
      "': expected an op as \"aten::mm\", \"aten::add.Tensor\", \"mm\" or \"c10d::*\", or "
      "\"tag:pointwise\" or \"tag:view\", got neither. Write the op as its schema does.");
}

}  // namespace

/// The pattern of a rule for ops. It may have two readings: in "a.b", b is an overload or an op.
struct PolicyTable::OpPattern {
  enum class Tag : uint8_t { kNone, kPointwise, kView };

  OpPattern() = default;
  explicit OpPattern(const std::string& pattern);

  bool fits(const OpName& op) const {
    if (tag == Tag::kPointwise) return op.is_pointwise;
    if (tag == Tag::kView) return op.is_view;
    if (op.is_composite && is_glob) return false;
    return std::any_of(forms.begin(), forms.end(), [&](const NamedOp& form) {
      return matches(form.name, op.name) &&
             (!form.overload || matches(*form.overload, op.overload));
    });
  }

  void add(const std::string& space, const std::string& name, std::optional<std::string> overload) {
    if (overload == "default") overload = "";
    forms.push_back({space + "::" + name, std::move(overload)});
  }

  Tag tag = Tag::kNone;
  bool is_glob = false;
  std::vector<NamedOp> forms;
};

PolicyTable::OpPattern::OpPattern(const std::string& pattern) : is_glob(has_wildcard(pattern)) {
  if (pattern == "tag:pointwise" || pattern == "tag:view") {
    tag = pattern == "tag:view" ? Tag::kView : Tag::kPointwise;
    return;
  }
  if (pattern == "*") {
    add("*", "*", std::nullopt);
    return;
  }
  const std::string text = take_prefix(pattern, "torch.ops.");
  const size_t colons = text.find("::");
  std::vector<std::string> parts = split(text.substr(colons == text.npos ? 0 : colons + 2), '.');
  const bool is_odd = parts.size() > (colons == text.npos ? 3 : 2) ||
                      std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
                        return part.empty() || part.find_first_of(": /#") != part.npos;
                      });
  if (is_odd || colons == 0) reject(pattern);
  const auto part = [&](size_t i) {
    return i < parts.size() ? std::optional(parts[i]) : std::nullopt;
  };
  if (colons != text.npos) {
    add(text.substr(0, colons), parts[0], part(1));
  } else if (parts.size() == 3) {
    add(parts[0], parts[1], part(2));
  } else {
    add("aten", parts[0], part(1));                                // reads add.Tensor
    if (parts.size() == 2) add(parts[0], parts[1], std::nullopt);  // reads aten.add
  }
}

std::string PolicyRule::str() const {
  return std::string(kind == Kind::kOp ? "op '" : "call '") + pattern + "' -> " +
         policy_name(policy) + " (" + source + ")";
}

PolicyTable::PolicyTable() = default;
PolicyTable::PolicyTable(const PolicyTable& other) = default;
PolicyTable::PolicyTable(PolicyTable&& other) noexcept = default;
PolicyTable& PolicyTable::operator=(const PolicyTable& other) = default;
PolicyTable& PolicyTable::operator=(PolicyTable&& other) noexcept = default;
PolicyTable::~PolicyTable() = default;

void PolicyTable::add_rule(PolicyRule rule) {
  const bool is_op = rule.kind == PolicyRule::Kind::kOp;
  if (!is_op && rule.pattern.empty())
    throw std::invalid_argument(
        "[policy] call rule: expected a name or a glob of names, got an empty one. Write '*' for "
        "all calls.");
  patterns_.push_back(is_op ? OpPattern(rule.pattern) : OpPattern());
  rules_.push_back(std::move(rule));
}

PolicyTable& PolicyTable::op(std::string pattern, Policy policy) {
  add_rule({PolicyRule::Kind::kOp, std::move(pattern), policy, "code"});
  return *this;
}

PolicyTable& PolicyTable::call(std::string pattern, Policy policy) {
  add_rule({PolicyRule::Kind::kCall, std::move(pattern), policy, "code"});
  return *this;
}

PolicyTable& PolicyTable::add(const PolicyTable& other) {
  const PolicyTable copy = other;  // `other` may be this table
  rules_.insert(rules_.end(), copy.rules_.begin(), copy.rules_.end());
  patterns_.insert(patterns_.end(), copy.patterns_.begin(), copy.patterns_.end());
  return *this;
}

PolicyTable& PolicyTable::from(const std::string& source) {
  for (PolicyRule& rule : rules_) rule.source = source;
  return *this;
}

bool PolicyTable::has_call_rules() const {
  return std::any_of(rules_.begin(), rules_.end(),
                     [](const PolicyRule& rule) { return rule.kind == PolicyRule::Kind::kCall; });
}

std::optional<size_t> PolicyTable::rule_for_call(std::string_view name) const {
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].kind == PolicyRule::Kind::kCall && matches(rules_[i].pattern, name)) return i;
  }
  return std::nullopt;
}

std::optional<size_t> PolicyTable::rule_for_op(const OpName& op) const {
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].kind == PolicyRule::Kind::kOp && patterns_[i].fits(op)) return i;
  }
  return std::nullopt;
}

std::vector<PolicyTable::NamedOp> PolicyTable::ops_named_by(size_t i) const {
  const OpPattern& pattern = patterns_[i];
  if (pattern.is_glob) return {};
  return pattern.forms;
}

std::string_view PolicyTable::op_of_call(std::string_view call) {
  const size_t colons = call.rfind("::");
  const size_t count = call.rfind('#');
  if (colons == std::string_view::npos || count == std::string_view::npos || count < colons)
    return {};
  const size_t slash = call.rfind('/', colons);
  const size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  return call.substr(begin, count - begin);
}

std::string PolicyTable::explain(std::string_view call) const {
  std::optional<size_t> rule = rule_for_call(call);
  const std::string_view op = op_of_call(call);
  if (!rule && !op.empty()) {
    const size_t dot = op.find('.');
    rule = rule_for_op({.name = op.substr(0, dot),
                        .overload = dot == op.npos ? std::string_view() : op.substr(dot + 1)});
  }
  std::string text = "call '" + std::string(call) + "': ";
  if (rule)
    return text + policy_name(rules_[*rule].policy) + " by rule " + std::to_string(*rule) + ", " +
           rules_[*rule].str();
  return text + (op.empty() ? "the policy that its code gives it, no rule matches"
                            : "RECOMPUTE, no rule matches");
}

}  // namespace remat
