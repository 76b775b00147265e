// SPDX-License-Identifier: BSD-3-Clause

// Profiles as JSON: how they are read, and how faults are worded.
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <remat/planner/planner.h>

#include "planner/chain/fault_of.h"
#include "planner/chain/test_data.h"
#include "support/catch.h"

using remat::Planner;
using remat::Profile;

namespace {

// Line numbers in errors are those of this text.
const char* const small = R"({
 "time_unit": "us",
 "byte_unit": "B",
 "block_types": [
  {"name": "mlp", "input_bytes": 8, "output": "y",
   "ops": [
    {"name": "fc", "fwd": 4, "bwd": 8, "ins": ["in"], "outs": [["h", 32]], "bwd_needs": ["in"]},
    {"name": "gelu", "fwd": 1, "bwd": 1, "ins": ["h"], "outs": [["y", 8]], "bwd_needs": ["h"]}
   ]}
 ],
 "chain": [0, 0]
})";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = small;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    Profile::from_json(text, "small.json");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

/// Checks that every key of an object that to_json writes is described, and that every required key
/// is there.
void check_described(const nlohmann::json& value, nlohmann::json schema,
                     const nlohmann::json& root) {
  if (schema.contains("$ref"))
    schema = root.at(nlohmann::json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
  if (value.is_object() && schema.contains("properties")) {
    for (const auto& [key, member] : value.items()) {
      CAPTURE(key);
      REQUIRE(schema["properties"].contains(key));
      check_described(member, schema["properties"][key], root);
    }
    for (const auto& key : schema.value("required", nlohmann::json::array()))
      CHECK(value.contains(key.get<std::string>()));
  }
  if (value.is_array() && schema.contains("items") && schema["items"].is_object()) {
    for (const auto& item : value) check_described(item, schema["items"], root);
  }
}

nlohmann::json schema_of(const std::string& what) {
  return nlohmann::json::parse(
      remat::test::read_file(std::string(REMAT_PLANNER_SCHEMA) + "/" + what + ".schema.json"));
}

}  // namespace

TEST_CASE("A profile survives being written and read", "[policy][profile]") {
  for (const auto& path : remat::test::instances("")) {
    CAPTURE(path.filename());
    const Profile profile = Profile::from_json(remat::test::read_file(path));
    const std::string text = profile.to_json();
    CHECK(Profile::from_json(text).to_json() == text);
    CHECK(Profile::from_json(text).digest() == profile.digest());
  }
}

TEST_CASE("Keys that may be left out have the documented values", "[policy][profile]") {
  const Profile profile = Profile::from_json(small);
  CHECK(profile.block_types[0].input_grad);
  CHECK(profile.block_types[0].ops[0].fwd_tmp_bytes == 0);
  CHECK(profile.merge_patterns.empty());
}

TEST_CASE("The digest tells profiles apart by what plans depend on", "[policy][profile]") {
  const Profile profile = Profile::from_json(small);
  Profile other = profile;
  other.name = "another name";
  CHECK(other.digest() == profile.digest());
  other.block_types[0].ops[1].fwd_us = 1.5;
  CHECK(other.digest() != profile.digest());
  other = profile;
  other.chain.push_back(0);
  CHECK(other.digest() != profile.digest());
}

TEST_CASE("Faults of a profile are named with line and place", "[policy][profile][errors]") {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  const Case cases[] = {
      {"\"chain\": [0, 0]\n}", "\"chain\": [0, 0]\n",
       "[profile] small.json:11: expected JSON, got a syntax error"},
      {"\"fwd\": 1", "\"fwd\": -1",
       "small.json:8: block_types[0].ops[1].fwd (type 'mlp', op 'gelu'): expected 0 to 1e9 us, got "
       "-1"},
      {"\"fwd\": 1", "\"fwd\": \"1\"",
       "small.json:8: block_types[0].ops[1].fwd: expected a number, got \"1\""},
      {"\"fwd\": 1,", "",
       "small.json:8: block_types[0].ops[1]: expected a member \"fwd\", got none"},
      {"\"fwd\": 1", "\"fwd\": 1, \"fwdtmp\": 3",
       "small.json:8: block_types[0].ops[1].fwdtmp: expected no member of this name"},
      {"\"fwd\": 1", "\"fwd\": 1, \"fwd\": 2",
       "small.json:8: key \"fwd\": expected once in its object, got it twice"},
      {"[\"h\", 32]", "[\"h\", 1e300]",
       "small.json:7: block_types[0].ops[0].outs[0][1]: expected a whole number"},
      {"[\"h\", 32]", "[\"h\", 9223372036854775808]", "small.json:7: expected a number below 2^63"},
      {"\"ins\": [\"h\"]", "\"ins\": [\"g\"]",
       "small.json:8: block_types[0].ops[1].ins[0] (type 'mlp', op 'gelu'): expected \"in\" or a "
       "tensor "
       "made before, got 'g'"},
      {"\"output\": \"y\"", "\"output\": \"z\"",
       "small.json:5: block_types[0].output (type 'mlp'): expected the first out of an op, got "
       "'z'"},
      {"\"chain\": [0, 0]", "\"chain\": [0, 1]",
       "small.json:11: chain[1]: expected an index into the 1 block_types, got 1"},
      {"\"chain\": [0, 0]", "\"chain\": []",
       "small.json:11: chain: expected 1 to 4096 regions, got 0"},
      {"[\"y\", 8]", "[\"y\", 16]",
       "small.json:11: chain[1] (region 1 'mlp'): expected an input of 16 bytes, what region 0 "
       "'mlp' puts out, got 8"},
      {"\"ins\": [\"in\"]", "\"ins\": []",
       "small.json:11: chain[1] (region 1 'mlp'): expected ops that lead from \"in\" to the "
       "output"},
      {"\"us\"", "\"ms\"", "small.json:2: time_unit: expected \"us\", got \"ms\""},
      {"\"chain\"", "\"ideal_time\": 3,\n \"chain\"",
       "small.json:11: ideal_time: expected 28.000000, the sum of all fwd and bwd"},
      {"\"input_bytes\": 8", "\"input_bytes\": 8, \"input_grad\": false",
       "chain[1] (region 1 'mlp'): expected input_grad after the first region"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.to);
    CHECK_THAT(error_of(replaced(one.from, one.to)), ContainsSubstring(one.message));
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  CHECK_THAT(error_of(deep), ContainsSubstring("expected at most 64 levels of brackets"));
  CHECK_THAT(error_of(""), ContainsSubstring("[profile] small.json:1: expected JSON"));
}

TEST_CASE("A merged type must be its pattern's ops", "[policy][profile][errors]") {
  const auto& path = remat::test::planner_data() / "large_gpt2l_2x512_v100.json";
  const Profile profile = Profile::from_json(remat::test::read_file(path));
  const auto fault_after = [&](const auto& change) {
    return remat::test::fault_of(profile, change);
  };
  CHECK(fault_after([](Profile&) {}) == "no error");
  CHECK_THAT(fault_after([](Profile& p) { p.block_types[4].ops[3].fwd_us += 1; }),
             ContainsSubstring("[profile] changed: merge_patterns[0].block_type (type 'layer', op "
                               "'attn.softmax'): expected the pattern's times"));
  CHECK_THAT(fault_after([](Profile& p) {
               p.merge_patterns[0].pattern = {2, 1};
             }),
             ContainsSubstring("expected op 'mlp.ln'"));
  CHECK_THAT(fault_after([](Profile& p) { p.merge_patterns[0].pattern = {1}; }),
             ContainsSubstring("expected two regions or more"));
  CHECK_THAT(fault_after([](Profile& p) { p.block_types[4].ops.pop_back(); }),
             ContainsSubstring("expected"));
}

TEST_CASE("The published schemas describe every key of the files", "[policy][schema]") {
  const auto& path = remat::test::planner_data() / "large_gpt2l_2x512_v100.json";
  const Profile profile = Profile::from_json(remat::test::read_file(path));
  const nlohmann::json profile_schema = schema_of("profile");
  check_described(nlohmann::json::parse(profile.to_json()), profile_schema, profile_schema);
  const nlohmann::json plan_schema = schema_of("plan");
  const Planner planner(profile, {.max_breakpoints = 50});
  for (const int64_t budget : {int64_t{1000}, int64_t{1} << 30}) {
    const nlohmann::json plan = nlohmann::json::parse(planner.plan(budget).to_json());
    CHECK(plan["feasible"] == (budget > 1000));
    check_described(plan, plan_schema, plan_schema);
  }
  // Files of instances have answers, too.
  for (const auto& instance : remat::test::instances("")) {
    CAPTURE(instance.filename());
    check_described(nlohmann::json::parse(remat::test::read_file(instance)), profile_schema,
                    profile_schema);
  }
}
