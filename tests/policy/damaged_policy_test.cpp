// SPDX-License-Identifier: BSD-3-Clause

// A damaged policy file is refused by name and rule, or it is another table that can be used and
// written.
#include <remat/policy/policy_table.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "damage/read_mutants.h"
#include "support/catch.h"

namespace remat {
namespace {

/// True for UTF-8, the only encoding of Python's messages.
bool is_utf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

/// True for "[policy] mutant.json:3: expected ..., got ....", or "[policy] mutant.json, rule 3...:
/// ...".
bool table_names_the_place(const std::string& text) {
  const std::string head = "[policy] mutant.json";
  if (!text.starts_with(head) || text.find("expected ") == std::string::npos ||
      text.find(", got ") == std::string::npos || !is_utf8(text)) {
    return false;
  }
  const std::string rest = text.substr(head.size());
  return rest.starts_with(":") || rest.starts_with(", rule ");
}

std::vector<std::string> policy_files() {
  PolicyTable mixed;
  mixed.op("aten::mm", Policy::kOffload).op("tag:pointwise", Policy::kRecompute);
  mixed.op("torch.ops.aten.add.Tensor", Policy::kSave).op("c10d::*", Policy::kSave);
  mixed.call("block*/attention", Policy::kOffload).call("block?/aten::bmm#1", Policy::kRecompute);
  std::vector<std::string> texts = {
      mixed.to_json(),
      R"({"remat_policy": 1, "rules": []})",
      R"({"rules": [{"preset": "save_matmuls"}, {"policy": "SAVE", "call": "a\u00e9\n*"},
                    {"op": "aten.mm.default", "policy": "RECOMPUTE"}], "remat_policy": 1})",
  };
  for (const char* name :
       {"save_matmuls", "save_compute_intensive", "recompute_pointwise", "safe_defaults"})
    texts.push_back(preset(name).to_json());
  return texts;
}

/// Returns an empty text if the table can be used and written, and is the same when read back.
std::string table_fault_of(const PolicyTable& table) {
  for (const char* name : {"attention", "block1/aten::mm#3", "", "aten::add.Tensor#0"}) {
    if (table.explain(name).empty()) return "it explains nothing";
    table.rule_for_call(name);
  }
  table.rule_for_op({.name = "aten::add", .overload = "Tensor", .is_pointwise = true});
  const std::string written = table.to_json();
  const PolicyTable again = PolicyTable::from_json(written, "mutant.json");
  if (again.rules().size() != table.rules().size()) return "it loses rules when it is written";
  return again.to_json() == written ? "" : "it changes when it is read back";
}

}  // namespace

TEST_CASE("A damaged policy file is refused at its place, or is a policy",
          "[policy][policy_table][fuzz]") {
  const std::vector<std::string> texts = policy_files();
  std::vector<std::string> written;
  for (const std::string& text : texts)
    written.push_back(PolicyTable::from_json(text, "mutant.json").to_json());
  const auto fault = [&](size_t which, const std::string& text, test::Tally& tally) {
    const PolicyTable table = PolicyTable::from_json(text, "mutant.json");
    ++tally.accepted;
    tally.changed += table.to_json() != written[which];
    return table_fault_of(table);
  };
  const test::Tally tally = test::read_mutants(texts, table_names_the_place, fault);
  WARN(tally.read << " files, " << tally.refused << " refused, " << tally.accepted
                  << " accepted, of which " << tally.changed << " are other tables");
  CHECK(tally.refused > tally.read / 4);
  CHECK(tally.changed > test::mutants_per_damage() / 50);
}

TEST_CASE("A policy file of brackets inside brackets is refused, however deep", "[policy][fuzz]") {
  for (const size_t depth : {100, 100'000, 1'000'000}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    for (const std::string& text :
         {deep, R"({"remat_policy": )" + deep + R"(, "rules": []})",
          R"({"remat_policy": 1, "rules": )" + deep + "}",
          R"({"remat_policy": 1, "rules": [{"op": )" + deep + R"(, "policy": "SAVE"}]})"}) {
      std::string error = "accepted";
      try {
        PolicyTable::from_json(text, "mutant.json");
      } catch (const std::invalid_argument& refusal) {
        error = refusal.what();
      }
      CHECK(table_names_the_place(error));
      CHECK(error.size() < 1000);  // names the place without printing the file
    }
  }
}

TEST_CASE("A key that a policy file has twice is refused", "[policy]") {
  for (const char* text :
       {R"({"remat_policy": 2, "remat_policy": 1, "rules": []})",
        R"({"remat_policy": 1, "rules": [{"op": "mm", "op": "add", "policy": "SAVE"}]})"})
    CHECK_THROWS_AS(PolicyTable::from_json(text, "mutant.json"), std::invalid_argument);
}

}  // namespace remat
