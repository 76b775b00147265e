// SPDX-License-Identifier: BSD-3-Clause

// A region's policy for an op or a call, from its table and its function, and the check that rules
// name existing ops.
#include <remat/engine/region_policy.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>
#include <remat/engine/write_kind.h>

namespace remat {
namespace {

using NamedOp = PolicyTable::NamedOp;

constexpr size_t kMostNames = 3;

std::string_view space_of(std::string_view name) {
  return name.substr(0, name.find("::"));
}

/// Maps the names of ops to their overloads, as registered at the last failed lookup. Needed
/// because the dispatcher cannot find an op by its name alone.
using RegisteredOps = std::map<std::string, std::set<std::string>>;

bool has_op(const RegisteredOps& ops, const NamedOp& op) {
  const auto found = ops.find(op.name);
  return found != ops.end() && (!op.overload || found->second.contains(*op.overload));
}

bool has_any(const RegisteredOps& ops, const std::vector<NamedOp>& forms) {
  return std::any_of(forms.begin(), forms.end(),
                     [&](const NamedOp& form) { return has_op(ops, form); });
}

bool has_space(const RegisteredOps& ops, std::string_view space) {
  return std::any_of(ops.begin(), ops.end(),
                     [&](const auto& op) { return space_of(op.first) == space; });
}

void look_again(RegisteredOps& ops) {
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames())
    ops[op.name].insert(op.overload_name);
}

/// Edit distance: the least number of letters to change, leave out or add.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (const auto i : c10::irange(a.size())) {
    size_t before = std::exchange(row[0], i + 1);
    for (const auto j : c10::irange(b.size())) {
      const size_t other = before + (a[i] == b[j] ? 0 : 1);
      before = std::exchange(row[j + 1], std::min({other, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

/// Names, with their distance to the name that was not found.
using CloseNames = std::set<std::pair<size_t, std::string>>;

/// Adds `shown`, the text for `candidate`, if `candidate` is similar to `name`.
void add_close(CloseNames& close, std::string_view name, std::string_view candidate,
               const std::string& shown) {
  const size_t far = distance(name, candidate);
  if (far <= std::max<size_t>(1, name.size() / 3)) close.emplace(far, shown);
}

/// Text such as "Did you mean a, b or c? ".
std::string did_you_mean(const CloseNames& close) {
  std::string text;
  size_t count = 0;
  const size_t most = std::min(kMostNames, close.size());
  for (const auto& [far, shown] : close) {
    if (count == most) break;
    ++count;
    text.append(count == 1 ? "" : count == most ? " or " : ", ").append(shown);
  }
  return text.empty() ? "" : "Did you mean " + text + "? ";
}

std::string close_overloads(const RegisteredOps& ops, const NamedOp& op) {
  CloseNames close;
  for (const std::string& overload : ops.at(op.name)) {
    add_close(close, *op.overload, overload,
              op.name + "." + (overload.empty() ? "default" : overload));
  }
  return close.empty() ? "Without an overload all of them are meant. " : did_you_mean(close);
}

/// Similar names in the same namespace, or equal names in another namespace.
std::string close_names(const RegisteredOps& ops, const NamedOp& op) {
  const std::string_view space = space_of(op.name);
  const std::string_view name = std::string_view(op.name).substr(space.size());
  CloseNames close;
  for (const auto& [other, overloads] : ops) {
    const std::string_view other_space = space_of(other);
    const std::string_view other_name = std::string_view(other).substr(other_space.size());
    if (other_space == space || other_name == name) add_close(close, name, other_name, other);
  }
  return did_you_mean(close);
}

}  // namespace

/// When the rules are checked. A library may register its ops piece by piece, so only LibTorch's
/// own namespace is known to be complete before a region begins.
enum class RulesAsked : bool { kWhenMade, kInRegion };

namespace {

/// False if rule `i` of `table` names no registered op, but a library may yet register one. Throws
/// c10::ValueError, with similar names, if no library can register one any more. True for a pattern
/// with a wildcard, which may match nothing.
bool names_an_op(const PolicyTable& table, size_t i, RulesAsked when) {
  const std::vector<NamedOp> forms = table.ops_named_by(i);
  if (forms.empty()) return true;
  static std::mutex& mutex = *new std::mutex;
  static RegisteredOps& ops = *new RegisteredOps;
  const std::lock_guard lock(mutex);
  if (has_any(ops, forms)) return true;
  look_again(ops);
  if (has_any(ops, forms)) return true;
  const auto is_known_whole = [&](const NamedOp& form) {
    const std::string_view space = space_of(form.name);
    return space == "aten" || (when == RulesAsked::kInRegion && has_space(ops, space));
  };
  const std::string where = "[policy] op rule '" + table.rules()[i].pattern + "': expected an ";
  for (const NamedOp& form : forms) {
    TORCH_CHECK_VALUE(!ops.contains(form.name) || !is_known_whole(form), where, "overload of ",
                      form.name, " that is registered, got another one. ",
                      close_overloads(ops, form), "Write it as the op's schema does.");
  }
  TORCH_CHECK_VALUE(!std::all_of(forms.begin(), forms.end(), is_known_whole), where,
                    "op that is registered, got another name. ", close_names(ops, forms.back()),
                    "Load the library that registers it before, or write a pattern with *, which "
                    "may match nothing.");
  return false;
}

}  // namespace

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
  // The wrapper that this op makes cannot be a call's result, so no op rule applies. The op's
  // argument is kept, as the collective's result.
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
