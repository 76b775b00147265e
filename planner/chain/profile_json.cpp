// SPDX-License-Identifier: BSD-3-Clause

// JSON of profiles.
#include <cmath>
#include <nlohmann/json.hpp>

#include <remat/planner/profile.h>
#include <remat/policy/json_tree.h>

#include "profile_check.h"

namespace remat {

namespace {

using detail::JsonValue;
using nlohmann::ordered_json;

ProfileOp read_op(const JsonValue& value) {
  value.check_members({"name", "fwd", "bwd", "ins", "outs", "bwd_needs"},
                      {"kind", "fwd_tmp", "bwd_tmp"});
  ProfileOp op;
  op.name = value.at("name").string();
  if (value.has("kind")) op.kind = value.at("kind").string();
  op.fwd_us = value.at("fwd").number();
  op.bwd_us = value.at("bwd").number();
  if (value.has("fwd_tmp")) op.fwd_tmp_bytes = value.at("fwd_tmp").integer();
  if (value.has("bwd_tmp")) op.bwd_tmp_bytes = value.at("bwd_tmp").integer();
  op.ins = value.at("ins").strings();
  op.bwd_needs = value.at("bwd_needs").strings();
  for (const JsonValue& out : value.at("outs").items()) {
    const std::vector<JsonValue> pair = out.items();
    if (pair.size() != 2) out.fail("[name, bytes]", out.shown());
    op.outs.push_back({pair[0].string(), pair[1].integer()});
  }
  return op;
}

BlockType read_block_type(const JsonValue& value) {
  value.check_members({"name", "input_bytes", "output", "ops"}, {"input_grad"});
  BlockType type;
  type.name = value.at("name").string();
  type.input_bytes = value.at("input_bytes").integer();
  if (value.has("input_grad")) type.input_grad = value.at("input_grad").boolean();
  type.output = value.at("output").string();
  for (const JsonValue& op : value.at("ops").items()) type.ops.push_back(read_op(op));
  return type;
}

void check_unit(const JsonValue& value, const char* unit) {
  if (value.string() != unit) value.fail("\"" + std::string(unit) + "\"", value.shown());
}

void check_ideal_time(const Profile& profile, const JsonValue& value) {
  const double expected = detail::ideal_time_us(profile);
  if (std::abs(value.number() - expected) <= 1e-6 * expected) return;
  value.fail(std::to_string(expected) + ", the sum of all fwd and bwd over the chain",
             value.shown());
}

ordered_json op_json(const ProfileOp& op) {
  ordered_json outs = ordered_json::array();
  for (const ProfileTensor& out : op.outs) outs.push_back({out.name, out.bytes});
  return {{"name", op.name},
          {"kind", op.kind},
          {"fwd", op.fwd_us},
          {"bwd", op.bwd_us},
          {"fwd_tmp", op.fwd_tmp_bytes},
          {"bwd_tmp", op.bwd_tmp_bytes},
          {"ins", op.ins},
          {"outs", std::move(outs)},
          {"bwd_needs", op.bwd_needs}};
}

}  // namespace

Profile Profile::from_json(std::string_view text, const std::string& source) {
  const detail::JsonNode root = detail::parse_json(text, "profile", source);
  const JsonValue value(root, "profile", source, "",
                        "See planner/chain/schema/profile.schema.json.");
  value.check_members(
      {"time_unit", "byte_unit", "block_types", "chain"},
      {"name", "link_gbps", "merge_patterns", "ideal_time", "frontier", "best_known", "meta",
       "note", "verified", "plans_enumerated", "optimum_meaning", "infeasible_budget",
       "min_feasible_budget", "no_checkpoint_peak"});
  check_unit(value.at("time_unit"), "us");
  check_unit(value.at("byte_unit"), "B");
  Profile profile;
  if (value.has("name")) profile.name = value.at("name").string();
  for (const JsonValue& type : value.at("block_types").items())
    profile.block_types.push_back(read_block_type(type));
  profile.chain = value.at("chain").ints();
  if (value.has("merge_patterns")) {
    for (const JsonValue& item : value.at("merge_patterns").items()) {
      item.check_members({"pattern", "block_type"}, {});
      const int64_t type = item.at("block_type").integer();
      if (type < 0 || type >= static_cast<int64_t>(profile.block_types.size())) {
        item.at("block_type").fail("an index into block_types", std::to_string(type));
      }
      profile.merge_patterns.push_back({item.at("pattern").ints(), static_cast<int>(type)});
    }
  }
  detail::raise_faults("profile", source, &root, [&] { detail::check_profile(profile); });
  if (value.has("ideal_time")) check_ideal_time(profile, value.at("ideal_time"));
  return profile;
}

std::string Profile::to_json() const {
  ordered_json types = ordered_json::array();
  for (const BlockType& type : block_types) {
    ordered_json ops = ordered_json::array();
    for (const ProfileOp& op : type.ops) ops.push_back(op_json(op));
    types.push_back({{"name", type.name},
                     {"input_bytes", type.input_bytes},
                     {"input_grad", type.input_grad},
                     {"output", type.output},
                     {"ops", std::move(ops)}});
  }
  ordered_json merges = ordered_json::array();
  for (const MergePattern& merge : merge_patterns) {
    merges.push_back({{"pattern", merge.pattern}, {"block_type", merge.block_type}});
  }
  const ordered_json all = {{"name", name},     {"time_unit", "us"},
                            {"byte_unit", "B"}, {"block_types", std::move(types)},
                            {"chain", chain},   {"merge_patterns", std::move(merges)}};
  return all.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace remat
