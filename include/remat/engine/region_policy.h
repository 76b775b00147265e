// SPDX-License-Identifier: BSD-3-Clause

// The policy of a region: what becomes of each op and named call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <remat/engine/export.h>
#include <remat/policy/policy.h>
#include <remat/policy/policy_table.h>

namespace remat {

struct NamedCall;
class OpCall;
class OpInfo;
enum class RulesAsked : bool;

/// An op that is about to run in a region, for a PolicyFunction. Valid until the function returns.
struct PolicyQuery {
  const OpCall& op;
  /// Name that the op would have as a named call: "block/aten::mm#3".
  std::string_view call;
  bool is_recompute;  ///< True in a replay, where the answer must equal the forward's
};

/// Chooses the policy of an op by its arguments; nullopt leaves the op to the rules. Called in the
/// forward and in each replay, on their threads, without any region active.
using PolicyFunction = std::function<std::optional<Policy>(const PolicyQuery&)>;

/// The rules of a PolicyTable, followed by the safe defaults; and a function that decides after the
/// rules for calls and before the rules for ops. All regions of one checkpoint(options) share it.
/// Usable from any thread.
class REMAT_API RegionPolicy {
 public:
  /// Throws c10::ValueError if a rule names an op that does not exist; see also check_ops().
  explicit RegionPolicy(PolicyTable table, PolicyFunction function = {});

  /// Stands in for a policy in a region whose segments have policies of their own: Cuts::policies.
  static const RegionPolicy& per_segment();
  bool is_per_segment() const { return this == &per_segment(); }

  /// Number that identifies this policy in the process.
  uint64_t id() const { return id_; }

  /// True if an op's name alone decides its policy.
  bool is_static() const { return !function_ && !names_ops_; }

  /// The policy that the rules for ops give to `op`; nullopt if no rule matches.
  std::optional<Policy> of_op(const OpInfo& op, bool is_composite) const;

  /// The policy of the op that `query` describes, from rules and function. The function is not
  /// called for composite ops.
  std::optional<Policy> of_op(const PolicyQuery& query, bool is_composite) const;

  std::optional<Policy> of_call(std::string_view name) const;

  const PolicyTable& table() const { return table_; }

  /// The rule that gave `call` its policy. Null if the call's code or the PolicyFunction gave it,
  /// or if the matching rule has another policy. Searches the rules, so use it for reports only.
  const PolicyRule* rule_of(const NamedCall& call) const;

  /// Called when a region begins. Throws c10::ValueError if a rule names an op that does not exist
  /// although its library has by now registered other ops.
  void check_ops() const;

  /// The rules that have not matched so far, except those of presets.
  std::vector<PolicyRule> unmatched() const;

 private:
  bool all_name_ops(RulesAsked when) const;
  std::optional<Policy> decide(std::optional<size_t> rule) const;

  const uint64_t id_;
  const size_t own_rules_;  // number of rules before the safe defaults
  const PolicyTable table_;
  const PolicyFunction function_;
  const bool has_call_rules_;
  const bool names_ops_;  // true if a rule for calls has a pattern with "::", as names of ops do
  mutable std::deque<std::atomic<bool>> matched_;
  // True if the last check found a rule that names an op that does not exist.
  mutable std::atomic<bool> may_name_no_op_{false};
};

/// Makes a policy for CheckpointOptions::policy. Throws as RegionPolicy's constructor does.
REMAT_API std::shared_ptr<const RegionPolicy> make_policy(PolicyTable table,
                                                          PolicyFunction function = {});

}  // namespace remat
