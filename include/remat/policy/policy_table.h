// SPDX-License-Identifier: BSD-3-Clause

// Rules that decide, by the names of ops and of named calls, what a region keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
    kCall,  ///< `pattern` is a name of named calls, or a glob of such names.
    kOp,    ///< `pattern` is an op: see PolicyTable::op().
  };
  Kind kind = Kind::kOp;
  std::string pattern;
  Policy policy = Policy::kSave;
  std::string source;  ///< Where it is from: "code", a preset, or a file.

  /// "op 'aten::mm' -> SAVE (save_matmuls)"
  REMAT_API std::string str() const;

  /// True for a rule of a preset, many of which match nothing in most models.
  REMAT_API bool is_of_preset() const;
};

/// An op, as rules see it.
struct OpName {
  std::string_view name;      ///< "aten::add"
  std::string_view overload;  ///< "Tensor"; empty for the default one.
  bool is_composite = false;  ///< Made of other ops, which rules see next.
  bool is_pointwise = false;  ///< LibTorch's tag.
  bool is_view = false;       ///< Returns a view of an argument.
};

/// Says what becomes of the ops and the named calls of a region. A value: copies are independent.
/// May be read from any thread.
///
/// Precedence: rules for calls come before rules for ops; among each kind the first rule that
/// matches decides; an op or call that no rule matches is what it is without a table: RECOMPUTE, or
/// the policy that its code gives it.
///
/// An op that a rule makes SAVE or OFFLOAD is a named call, "aten::mm#3" for the fourth aten::mm of
/// the region or of its NameScope ("block/aten::mm#3"), so that rules for calls apply to it too.
class REMAT_API PolicyTable {
 public:
  PolicyTable();
  PolicyTable(const PolicyTable& other);
  PolicyTable(PolicyTable&& other) noexcept;
  PolicyTable& operator=(const PolicyTable& other);
  PolicyTable& operator=(PolicyTable&& other) noexcept;
  ~PolicyTable();

  /// Adds a rule for ops, in any form that LibTorch or Python prints: "aten::mm", "mm", "aten.mm",
  /// "aten::add.Tensor", "torch.ops.aten.mm.default"; without an overload all of them are meant. *
  /// and ? stand for any characters ("c10d::*"): such a pattern matches ops that are not made of
  /// others. "tag:pointwise" and "tag:view" match by what LibTorch says of the op. Throws
  /// std::invalid_argument for a pattern that no op can match.
  PolicyTable& op(std::string pattern, Policy policy);

  /// Adds a rule for named calls, with * and ? as above: "block*/attention".
  PolicyTable& call(std::string pattern, Policy policy);

  /// Adds all rules of `other` after those that are there.
  PolicyTable& add(const PolicyTable& other);

  /// Says where the rules that are there come from.
  PolicyTable& from(const std::string& source);

  bool empty() const { return rules_.empty(); }
  const std::vector<PolicyRule>& rules() const { return rules_; }
  bool has_call_rules() const;

  /// The position of the rule that decides; none if no rule matches.
  std::optional<size_t> rule_for_call(std::string_view name) const;
  std::optional<size_t> rule_for_op(const OpName& op) const;

  /// The op of a call that a rule for ops made: "aten::add.Tensor" of "block/aten::add.Tensor#3";
  /// empty for other names.
  static std::string_view op_of_call(std::string_view call);

  /// An op without wildcards; without an overload, all of them.
  struct NamedOp {
    std::string name;  ///< With the namespace.
    std::optional<std::string> overload;
  };

  /// The ops one of which rule `i` means, by all ways to read it. Empty for one with * or ?, a tag,
  /// and rules for calls.
  std::vector<NamedOp> ops_named_by(size_t i) const;

  /// What becomes of the call of that name, which may be an op's ("block/aten::mm#3"), and
  /// by which rule, as text.
  std::string explain(std::string_view call) const;

  /// Throws std::invalid_argument that names `source` and the line or rule.
  static PolicyTable from_json(std::string_view text, const std::string& source);
  /// From a JSON file. Throws std::invalid_argument that names `path` and the line or rule.
  static PolicyTable load(const std::string& path);
  std::string to_json() const;

 private:
  struct OpPattern;

  void add_rule(PolicyRule rule);

  std::vector<PolicyRule> rules_;
  std::vector<OpPattern> patterns_;  // of rules_; empty ones for calls
};

/// `name` of a preset: its table. Throws std::invalid_argument that lists the presets.
REMAT_API PolicyTable preset(std::string_view name);

/// SAVEs what multiplies matrices.
REMAT_API PolicyTable save_matmuls();

/// SAVEs matrix products, convolutions, attention and resampling.
REMAT_API PolicyTable save_compute_intensive();

/// SAVEs all but pointwise ops and views.
REMAT_API PolicyTable recompute_pointwise();

/// SAVEs what a second run might do differently, or must not do twice: indices and sizes that
/// depend on data, and collectives. Part of every policy, after its own rules.
REMAT_API PolicyTable safe_defaults();

}  // namespace remat
