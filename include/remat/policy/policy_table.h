// SPDX-License-Identifier: BSD-3-Clause

// Rules that decide what a region keeps, by the names of ops and named calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>
#include <remat/policy/policy.h>

namespace remat {

/// One line of a PolicyTable.
struct PolicyRule {
  enum class Kind : uint8_t {
    kCall,  ///< `pattern` is the name of a named call, or a glob.
    kOp,    ///< `pattern` names ops: see PolicyTable::op().
  };
  Kind kind = Kind::kOp;
  std::string pattern;
  Policy policy = Policy::kSave;
  std::string source;  ///< Where the rule is from: "code", a preset, or a file

  /// "op 'aten::mm' -> SAVE (save_matmuls)"
  REMAT_API std::string str() const;

  /// True for a rule of a preset. Such rules often match nothing in a model.
  REMAT_API bool is_of_preset() const;
};

/// An op's properties that rules can match.
struct OpName {
  std::string_view name;      ///< "aten::add"
  std::string_view overload;  ///< "Tensor"; empty for the default overload
  bool is_composite = false;  ///< Calls other ops, which are matched by themselves
  bool is_pointwise = false;  ///< LibTorch's tag "pointwise"
  bool is_view = false;       ///< Returns a view of an argument
};

/// Decides the policies of the ops and named calls of a region. Copies are independent. May be read
/// from any thread.
///
/// Precedence: rules for calls come before rules for ops; within each kind the first rule that
/// matches decides. If no rule matches, an op is RECOMPUTE and a named call has the policy from its
/// code.
///
/// An op that a rule makes SAVE or OFFLOAD becomes a named call, "aten::mm#3" for the fourth
/// aten::mm of the region or of its NameScope ("block/aten::mm#3"), so that rules for calls apply
/// to it too.
class REMAT_API PolicyTable {
 public:
  PolicyTable();
  PolicyTable(const PolicyTable& other);
  PolicyTable(PolicyTable&& other) noexcept;
  PolicyTable& operator=(const PolicyTable& other);
  PolicyTable& operator=(PolicyTable&& other) noexcept;
  ~PolicyTable();

  /// Adds a rule for ops, named in any form that LibTorch or Python prints: "aten::mm", "mm",
  /// "aten.mm", "aten::add.Tensor", "torch.ops.aten.mm.default"; a name without an overload means
  /// all overloads. * and ? are wildcards ("c10d::*") and match only ops that are not composite.
  /// "tag:pointwise" matches by LibTorch's tag, "tag:view" by the schema. Throws
  /// std::invalid_argument for a pattern that no op can match.
  PolicyTable& op(std::string pattern, Policy policy);

  /// Adds a rule for named calls, with * and ? as wildcards: "block*/attention".
  PolicyTable& call(std::string pattern, Policy policy);

  /// Appends all rules of `other`.
  PolicyTable& add(const PolicyTable& other);

  /// Sets the source of the rules added so far.
  PolicyTable& from(const std::string& source);

  bool empty() const { return rules_.empty(); }
  const std::vector<PolicyRule>& rules() const { return rules_; }
  bool has_call_rules() const;

  /// Index of the rule that decides; nullopt if no rule matches.
  std::optional<size_t> rule_for_call(std::string_view name) const;
  std::optional<size_t> rule_for_op(const OpName& op) const;

  /// The op of a call made by a rule for ops: "aten::add.Tensor" for "block/aten::add.Tensor#3";
  /// empty for other names.
  static std::string_view op_of_call(std::string_view call);

  /// An op that a rule names without wildcards; all overloads of the op if `overload` is unset.
  struct NamedOp {
    std::string name;  ///< With the namespace
    std::optional<std::string> overload;
  };

  /// The ops that rule `i` may mean, one for each way to read its pattern. Empty for patterns with
  /// * or ?, tags, and rules for calls.
  std::vector<NamedOp> ops_named_by(size_t i) const;

  /// Text that says which policy the call with this name has, and by which rule. The name may be
  /// that of an op that a rule made a call ("block/aten::mm#3").
  std::string explain(std::string_view call) const;

  /// Throws a std::invalid_argument that names `source` and the line or rule.
  static PolicyTable from_json(std::string_view text, const std::string& source);
  /// Reads a JSON file. Throws a std::invalid_argument that names `path` and the line or rule.
  static PolicyTable load(const std::string& path);
  std::string to_json() const;

 private:
  struct OpPattern;

  void add_rule(PolicyRule rule);

  std::vector<PolicyRule> rules_;
  std::vector<OpPattern> patterns_;  // parallel to rules_; empty for calls
};

/// The table of the preset `name`. Throws a std::invalid_argument that lists the presets.
REMAT_API PolicyTable preset(std::string_view name);

/// SAVEs matrix products.
REMAT_API PolicyTable save_matmuls();

/// SAVEs matrix products, convolutions, attention and resampling.
REMAT_API PolicyTable save_compute_intensive();

/// SAVEs all ops except pointwise ops and views.
REMAT_API PolicyTable recompute_pointwise();

/// SAVEs ops whose second run might differ (results that are indices or sizes that depend on data)
/// or must not happen (collectives). Every policy applies these rules after its own.
REMAT_API PolicyTable safe_defaults();

}  // namespace remat
