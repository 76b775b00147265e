// SPDX-License-Identifier: BSD-3-Clause

// What a region's policy says of each op and named call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/policy/policy_table.h>
#include <remat/tape/export.h>

namespace remat {

struct NamedCall;
class OpCall;
class OpInfo;
enum class RulesAsked : bool;

/// An op that is about to run in a region, for a PolicyFunction. Valid during the call.
struct PolicyQuery {
  const OpCall& op;
  /// The name of the call that the op would be: "block/aten::mm#3".
  std::string_view call;
  bool is_recompute;  ///< A replay asks; the answer must be that of the forward.
};

/// Decides by the arguments too; none leaves the op to the rules. Called in the forward and in each
/// replay, on their threads, without any region active.
using PolicyFunction = std::function<std::optional<Policy>(const PolicyQuery&)>;

/// A PolicyTable with the safe defaults after it, and a function that is asked between its rules
/// for calls and those for ops. Shared by all regions of one checkpoint(options). Any thread.
class REMAT_API RegionPolicy {
 public:
  /// Throws c10::ValueError if a rule names an op that there is not; see also check_ops().
  explicit RegionPolicy(PolicyTable table, PolicyFunction function = {});
  RegionPolicy(const RegionPolicy&) = delete;
  RegionPolicy& operator=(const RegionPolicy&) = delete;

  /// Stands for those of a region's segments: see Cuts::policies.
  static const RegionPolicy& per_segment();
  bool is_per_segment() const { return this == &per_segment(); }

  /// Tells this policy from all others of the process.
  uint64_t id() const { return id_; }

  /// True if the name of an op decides, and nothing else.
  bool is_static() const { return !function_ && !names_ops_; }

  /// What the rules for ops say.
  std::optional<Policy> of_op(const OpInfo& op, bool is_composite) const;

  /// What the whole policy says of the op that `query` describes. The function is not asked about
  /// composite ops.
  std::optional<Policy> of_op(const PolicyQuery& query, bool is_composite) const;

  /// What the policy says of a named call.
  std::optional<Policy> of_call(std::string_view name) const;

  const PolicyTable& table() const { return table_; }

  /// The rule by which `call` has the policy that it has; null if its code gave it, the function
  /// did, or no rule says the same. For reports: looks through the rules.
  const PolicyRule* rule_of(const NamedCall& call) const;

  /// When a region begins: throws c10::ValueError if a rule names an op of a library that has
  /// registered others by now.
  void check_ops() const;

  /// The rules that have decided nothing so far, but for those of presets.
  std::vector<PolicyRule> unmatched() const;

 private:
  bool all_name_ops(RulesAsked when) const;
  std::optional<Policy> decide(std::optional<size_t> rule) const;

  const uint64_t id_;
  const size_t own_rules_;  // the safe defaults come after them
  const PolicyTable table_;
  const PolicyFunction function_;
  const bool has_call_rules_;
  const bool names_ops_;  // a rule for calls means calls of ops
  mutable std::deque<std::atomic<bool>> matched_;
  mutable std::atomic<bool> may_name_no_op_{false};  // a rule
};

/// For CheckpointOptions::policy. Throws as RegionPolicy does.
REMAT_API std::shared_ptr<const RegionPolicy> make_policy(PolicyTable table,
                                                          PolicyFunction function = {});

}  // namespace remat
