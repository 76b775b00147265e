// SPDX-License-Identifier: BSD-3-Clause

// A region's policy for an op or a call, from its table and its function.
#include <remat/tape/region_policy.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>

#include "op_name_check.h"
#include "unmarked_writes.h"

namespace remat {
namespace {

uint64_t next_policy_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

bool names_ops(const PolicyTable& table) {
  return std::any_of(table.rules().begin(), table.rules().end(), [](const PolicyRule& rule) {
    return rule.kind == PolicyRule::Kind::kCall && rule.pattern.find("::") != std::string::npos;
  });
}

OpName name_of(const OpInfo& op, bool is_composite) {
  const c10::OperatorName& name = op.operator_name();
  return {.name = name.name,
          .overload = name.overload_name,
          .is_composite = is_composite,
          .is_pointwise = op.is_pointwise(),
          .is_view = op.is_view()};
}

/// Looks up the op called `name`, such as "aten::add.Tensor".
std::optional<c10::OperatorHandle> op_named(std::string_view name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {std::string(name.substr(0, dot)),
       dot == name.npos ? std::string() : std::string(name.substr(dot + 1))});
}

}  // namespace

RegionPolicy::RegionPolicy(PolicyTable table, PolicyFunction function)
    : id_(next_policy_id()),
      own_rules_(table.rules().size()),
      table_(std::move(table.add(safe_defaults()))),
      function_(std::move(function)),
      has_call_rules_(table_.has_call_rules()),
      names_ops_(names_ops(table_)),
      matched_(table_.rules().size()) {
  may_name_no_op_ = !all_name_ops(RulesAsked::kWhenMade);
}

bool RegionPolicy::all_name_ops(RulesAsked when) const {
  bool all = true;
  for (const auto i : c10::irange(own_rules_)) {
    if (!table_.rules()[i].is_of_preset()) all = names_an_op(table_, i, when) && all;
  }
  return all;
}

void RegionPolicy::check_ops() const {
  if (C10_LIKELY(!may_name_no_op_.load(std::memory_order_relaxed))) return;
  all_name_ops(RulesAsked::kInRegion);
  may_name_no_op_ = false;  // Ops registered later are not checked.
}

const RegionPolicy& RegionPolicy::per_segment() {
  static const RegionPolicy& policy = *new RegionPolicy(PolicyTable());
  return policy;
}

std::optional<Policy> RegionPolicy::decide(std::optional<size_t> rule) const {
  if (!rule) return std::nullopt;
  matched_[*rule].store(true, std::memory_order_relaxed);
  return table_.rules()[*rule].policy;
}

std::optional<Policy> RegionPolicy::of_op(const OpInfo& op, bool is_composite) const {
  // The wrapper that it makes cannot be a call's result; its argument is kept as the collective's
  // result.
  if (op.is_of_library() && wraps_collective(op.operator_name().name)) return std::nullopt;
  return decide(table_.rule_for_op(name_of(op, is_composite)));
}

std::optional<Policy> RegionPolicy::of_op(const PolicyQuery& query, bool is_composite) const {
  if (names_ops_) {
    if (const auto policy = decide(table_.rule_for_call(query.call))) return policy;
  }
  if (function_ && !is_composite) {
    if (const auto policy = function_(query)) return policy;
  }
  return of_op(query.op.info(), is_composite);
}

std::optional<Policy> RegionPolicy::of_call(std::string_view name) const {
  return has_call_rules_ ? decide(table_.rule_for_call(name)) : std::nullopt;
}

const PolicyRule* RegionPolicy::rule_of(const NamedCall& call) const {
  const bool asks_calls = call.is_op ? names_ops_ : has_call_rules_;
  std::optional<size_t> rule = asks_calls ? table_.rule_for_call(call.name) : std::nullopt;
  if (!rule && call.is_op && !function_) {
    const auto op = op_named(PolicyTable::op_of_call(call.name));
    using Key = c10::DispatchKey;
    if (op)
      rule = table_.rule_for_op(
          name_of(OpInfo(*op), op->hasKernelForDispatchKey(Key::CompositeImplicitAutograd)));
  }
  const PolicyRule* const found = rule ? &table_.rules()[*rule] : nullptr;
  return found && found->policy == call.policy ? found : nullptr;
}

std::vector<PolicyRule> RegionPolicy::unmatched() const {
  std::vector<PolicyRule> rules;
  for (size_t i = 0; i < own_rules_; ++i) {
    const bool own = !table_.rules()[i].is_of_preset();
    if (own && !matched_[i].load(std::memory_order_relaxed)) rules.push_back(table_.rules()[i]);
  }
  return rules;
}

std::shared_ptr<const RegionPolicy> make_policy(PolicyTable table, PolicyFunction function) {
  return std::make_shared<const RegionPolicy>(std::move(table), std::move(function));
}

}  // namespace remat
