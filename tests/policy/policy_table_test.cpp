// SPDX-License-Identifier: BSD-3-Clause

// Policy tables: the rule that decides, the syntax of rules, and refused rules.
#include <remat/policy/policy_table.h>

#include <stdexcept>
#include <string>

#include "support/catch.h"

namespace remat {
namespace {

constexpr OpName kMm{.name = "aten::mm", .overload = ""};
constexpr OpName kAdd{.name = "aten::add", .overload = "Tensor", .is_pointwise = true};
constexpr OpName kReduce{.name = "c10d::allreduce_", .overload = ""};
constexpr OpName kLinear{.name = "aten::linear", .overload = "", .is_composite = true};
constexpr OpName kView{.name = "aten::view", .overload = "", .is_view = true};

bool matches(const std::string& pattern, const OpName& op) {
  return PolicyTable().op(pattern, Policy::kSave).rule_for_op(op).has_value();
}

std::string refusal(const std::string& json) {
  try {
    PolicyTable::from_json(json, "policy.json");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Ops may be written in every form that LibTorch and Python print", "[policy]") {
  for (const char* mm : {"aten::mm", "mm", "aten.mm", "aten.mm.default", "torch.ops.aten.mm",
                         "torch.ops.aten.mm.default", "aten::mm.default", "mm.default", "aten::m?",
                         "aten::*", "*", "*::mm"}) {
    INFO(mm);
    CHECK(matches(mm, kMm));
  }
  for (const char* add : {"aten::add", "add", "aten::add.Tensor", "add.Tensor", "aten.add.Tensor",
                          "aten.add", "tag:pointwise", "aten::add.T*"}) {
    INFO(add);
    CHECK(matches(add, kAdd));
    CHECK_FALSE(matches(add, kMm));
  }
  CHECK_FALSE(matches("aten::add.Scalar", kAdd));
  CHECK_FALSE(matches("aten::add.default", kAdd));
  CHECK(matches("c10d::*", kReduce));
  CHECK_FALSE(matches("c10d::*", kMm));
  CHECK_FALSE(matches("allreduce_", kReduce));
  CHECK(matches("tag:view", kView));
  CHECK_FALSE(matches("tag:view", kAdd));
}

TEST_CASE("A composite op is matched by its name, not by a glob", "[policy]") {
  CHECK(matches("aten::linear", kLinear));
  CHECK_FALSE(matches("aten::*", kLinear));
  CHECK_FALSE(matches("*", kLinear));
}

TEST_CASE("A pattern that no op can match is refused", "[policy]") {
  for (const char* pattern : {"", "aten::", "::mm", "aten::mm.default.x", "a.b.c.d", "aten.", "a b",
                              "tag:fast", "aten::mm#0"}) {
    INFO(pattern);
    CHECK_THROWS_WITH(PolicyTable().op(pattern, Policy::kSave),
                      ContainsSubstring("expected an op as"));
  }
  CHECK_THROWS_WITH(PolicyTable().call("", Policy::kSave),
                    ContainsSubstring("expected a name or a glob"));
}

TEST_CASE("The first rule that matches decides, calls before ops", "[policy]") {
  PolicyTable table;
  table.op("aten::mm", Policy::kRecompute).add(save_matmuls());
  table.call("block1/*", Policy::kOffload).call("block*/attention", Policy::kSave);
  CHECK(table.rules()[*table.rule_for_op(kMm)].policy == Policy::kRecompute);
  CHECK(table.rules()[*table.rule_for_call("block1/attention")].policy == Policy::kOffload);
  CHECK(table.rules()[*table.rule_for_call("block2/attention")].policy == Policy::kSave);
  CHECK_FALSE(table.rule_for_call("attention"));
  CHECK_FALSE(table.rule_for_op(kAdd));
}

TEST_CASE("A table says why", "[policy]") {
  PolicyTable table = save_matmuls();
  table.call("*/aten::bmm#1", Policy::kOffload).op("aten::add.Tensor", Policy::kSave);
  CHECK(table.explain("block/aten::mm#3") ==
        "call 'block/aten::mm#3': SAVE by rule 0, op 'aten::mm' -> SAVE (save_matmuls)");
  CHECK(table.explain("block/aten::bmm#1") ==
        "call 'block/aten::bmm#1': OFFLOAD by rule 13, call '*/aten::bmm#1' -> OFFLOAD (code)");
  CHECK(table.explain("aten::add.Tensor#0") ==
        "call 'aten::add.Tensor#0': SAVE by rule 14, op 'aten::add.Tensor' -> SAVE (code)");
  CHECK(table.explain("aten::sin#0") == "call 'aten::sin#0': RECOMPUTE, no rule matches");
  CHECK(table.explain("attention") ==
        "call 'attention': the policy that its code gives it, no rule matches");
}

TEST_CASE("A table survives JSON", "[policy]") {
  PolicyTable table;
  table.op("aten::mm", Policy::kSave).call("block*/x", Policy::kOffload).add(safe_defaults());
  const PolicyTable again = PolicyTable::from_json(table.to_json(), "policy.json");
  REQUIRE(again.rules().size() == table.rules().size());
  for (size_t i = 0; i < again.rules().size(); ++i) {
    CHECK(again.rules()[i].kind == table.rules()[i].kind);
    CHECK(again.rules()[i].pattern == table.rules()[i].pattern);
    CHECK(again.rules()[i].policy == table.rules()[i].policy);
    CHECK(again.rules()[i].source == "policy.json, rule " + std::to_string(i));
  }
  const PolicyTable presets = PolicyTable::from_json(
      R"({"remat_policy": 1, "rules": [{"preset": "save_matmuls"}]})", "policy.json");
  CHECK(presets.rules().size() == save_matmuls().rules().size());
}

TEST_CASE("A file that is not a policy is refused with the line", "[policy]") {
  const auto rule = [](const std::string& text) {
    return refusal(R"({"remat_policy": 1, "rules": [{"preset": "save_matmuls"}, )" + text + "]}");
  };
  CHECK_THAT(refusal("{\n\"a\"}"), ContainsSubstring("policy.json:2: expected JSON, got"));
  CHECK_THAT(refusal("[]"), ContainsSubstring("expected an object, got an array of 0"));
  CHECK_THAT(refusal("{}"), ContainsSubstring("expected a member \"remat_policy\", got none"));
  CHECK_THAT(refusal(R"({"remat_policy": 2, "rules": []})"),
             ContainsSubstring("remat_policy: expected 1, got 2"));
  CHECK_THAT(refusal(R"({"remat_policy": 1})"), ContainsSubstring("a member \"rules\", got none"));
  CHECK_THAT(refusal(R"({"remat_policy": 1, "rules": [], "rule": []})"),
             ContainsSubstring("expected no member of this name, got \"rule\""));
  CHECK_THAT(rule("3"),
             ContainsSubstring("policy.json:1: rules[1]: expected an object with \"op\"") &&
                 ContainsSubstring("got 3. See docs/how-to/policies.md"));
  CHECK_THAT(rule(R"({"op": "aten::mm"})"),
             ContainsSubstring("rules[1]: expected a member \"policy\", got none"));
  CHECK_THAT(rule(R"({"op": "mm", "call": "x", "policy": "SAVE"})"),
             ContainsSubstring("rules[1].call: expected no member of this name"));
  CHECK_THAT(
      rule(R"({"op": "mm", "policy": "save"})"),
      ContainsSubstring("rules[1].policy: expected \"SAVE\"") && ContainsSubstring("got \"save\""));
  CHECK_THAT(rule(R"({"op": 1, "policy": "SAVE"})"),
             ContainsSubstring("rules[1].op: expected a string, got 1"));
  CHECK_THAT(rule(R"({"op": "a\u0000b", "policy": "SAVE"})"),
             ContainsSubstring("policy.json:1: expected text without zero bytes"));
  CHECK_THAT(rule(R"({"op": ":", "policy": "SAVE"})"),
             ContainsSubstring("[policy] policy.json, rule 1, op rule ':': expected an op"));
  CHECK_THAT(rule(R"({"preset": "save_mm"})"),
             ContainsSubstring("policy.json, rule 1, preset 'save_mm'"));
  CHECK_THAT(rule(R"({"preset": "save_matmuls", "policy": "SAVE"})"),
             ContainsSubstring("rules[1].policy: expected no member of this name"));
  CHECK_THAT(rule(R"({"ops": "mm", "policy": "SAVE"})"),
             ContainsSubstring("rules[1]: expected an object with \"op\""));
}

}  // namespace remat
