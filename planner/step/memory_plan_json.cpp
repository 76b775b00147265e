// SPDX-License-Identifier: BSD-3-Clause

// JSON of memory plans and of their files. A plan names every op that it was made for.
#include <remat/planner/memory_plan.h>
#include <remat/planner/memory_plan_file.h>

#include <algorithm>
#include <stdexcept>

#include "json_rows.h"
#include "offload_json.h"
#include "step_check.h"
#include "step_graph.h"

namespace remat {

namespace {

using detail::JsonValue;
using nlohmann::ordered_json;

constexpr const char* offload_word = "OFFLOAD";
constexpr const char* format_key = "remat_memory_plan";
constexpr int format_version = 1;

std::string named(const std::string& op, const std::string& where) {
  return where.empty() ? op : op + " (" + where + ")";
}

ordered_json op_json(const MemoryPlanOp& op) {
  ordered_json row = {op.op,        op.where, detail::hex_text(op.digest),
                      op.replay_us, op.runs,  op.kept_bytes,
                      op.made_bytes};
  if (op.offloaded_bytes > 0) row.push_back(op.offloaded_bytes);
  return row;
}

double read_share(const JsonValue& value) {
  const double share = value.number();
  if (!(share >= 0)) value.fail("0 or more", value.shown());
  return share;
}

MemoryPlanOp read_op(const JsonValue& value) {
  const bool is_moved = value.items().size() == 8;
  const std::vector<JsonValue> row = value.row(is_moved ? 8 : 7);
  MemoryPlanOp op;
  op.op = row[0].string();
  op.where = row[1].string();
  op.digest = detail::read_hex(row[2]);
  op.replay_us = read_share(row[3]);
  op.runs = row[4].int32();
  op.kept_bytes = row[5].bytes();
  op.made_bytes = row[6].bytes();
  if (is_moved) op.offloaded_bytes = row[7].bytes();
  return op;
}

/// Throws an error that names the first op that differs, because a name says more than two digests.
void check_ops(const JsonValue& ops, const MemoryPlan& plan, const StepProfile& profile) {
  const std::vector<JsonValue> rows = ops.items();
  for (size_t j = 0; j < std::min(rows.size(), profile.records.size()); ++j) {
    const StepRecord& record = profile.records[j];
    if (plan.ops[j].digest == detail::record_digest(profile, record)) continue;
    const bool same_name = plan.ops[j].op == record.op;
    rows[j].fail(named(record.op, record.where) + ", as the step has",
                 named(plan.ops[j].op, plan.ops[j].where) +
                     (same_name ? " with other reads, results or sizes" : ""));
  }
  if (rows.size() == profile.records.size()) return;
  ops.fail("the step's " + std::to_string(profile.records.size()) + " ops",
           std::to_string(rows.size()));
}

void read_cuts(const JsonValue& value, StepCuts& cuts) {
  cuts.positions = value.at("positions").ints();
  for (const JsonValue& group : value.at("groups").items()) {
    const std::vector<JsonValue> pair = group.row(2);
    cuts.groups.emplace_back(pair[0].int32(), pair[1].int32());
  }
  for (const JsonValue& kept : value.at("keep").items()) {
    const bool is_moved = kept.items().size() == 3;
    const std::vector<JsonValue> row = kept.row(is_moved ? 3 : 2);
    if (is_moved && row[2].string() != offload_word) row[2].fail("\"OFFLOAD\"", row[2].shown());
    cuts.keep.push_back(
        {row[0].int32(), row[1].int32(), is_moved ? Policy::kOffload : Policy::kSave});
  }
}

ordered_json kept_json(const KeptResult& kept) {
  ordered_json row = {kept.record, kept.result};
  if (kept.policy == Policy::kOffload) row.push_back(offload_word);
  return row;
}

void read_offload(const JsonValue& value, MemoryPlan& plan) {
  for (const char* const key : {"offload", "offloaded", "wait_us"}) {
    if (!value.has(key))
      value.fail("offload, offloaded and wait_us, or none of them", "no " + std::string(key));
  }
  plan.offload = detail::read_terms(value.at("offload"));
  plan.offloaded_bytes = value.at("offloaded").bytes();
  plan.predicted_wait_us = read_share(value.at("wait_us"));
}

/// Throws for damaged cuts. Cuts that keep too little count as damaged, too.
void check_plan_cuts(const JsonValue& value, const StepCuts& cuts, const StepProfile& profile) {
  detail::raise_faults("memory plan", value.source(), &value.node(),
                       [&] { detail::check_cuts(cuts, profile); });
  try {
    simulate_step(profile, cuts);
  } catch (const std::logic_error& error) {
    value.at("keep").fail("all that crosses a cut", "less: " + std::string(error.what()));
  }
}

void read_numbers(const JsonValue& value, MemoryPlan& plan) {
  plan.feasible = value.at("feasible").boolean();
  plan.budget_bytes = value.at("budget").bytes();
  plan.predicted_peak_bytes = value.at("predicted_peak").bytes();
  plan.least_budget_bytes = value.at("least_budget").bytes();
  plan.predicted_overhead = read_share(value.at("overhead"));
  plan.lower_bound = read_share(value.at("lower_bound"));
  plan.peak_at = value.at("peak_at").string();
  plan.limit = value.at("limit").string();
  plan.profile_digest = value.at("profile_digest").string();
  if (plan.feasible != (plan.predicted_peak_bytes <= plan.budget_bytes)) {
    value.at("feasible")
        .fail("whether the predicted peak is within the budget", value.at("feasible").shown());
  }
  for (const JsonValue& phase : value.at("phases").items()) {
    const std::vector<JsonValue> pair = phase.row(2);
    plan.phases.push_back({pair[0].string(), pair[1].bytes()});
  }
}

}  // namespace

std::string MemoryPlan::to_json() const {
  std::vector<ordered_json> phase_rows;
  std::vector<ordered_json> op_rows;
  ordered_json group_pairs = ordered_json::array();
  ordered_json kept_rows = ordered_json::array();
  for (const auto& [first, end] : cuts.groups) group_pairs.push_back({first, end});
  for (const KeptResult& kept : cuts.keep) kept_rows.push_back(kept_json(kept));
  for (const MemoryPlanPhase& phase : phases)
    phase_rows.push_back(ordered_json::array({phase.name, phase.peak_bytes}));
  for (const MemoryPlanOp& op : ops) op_rows.push_back(op_json(op));
  detail::JsonRows json;
  json.add("profile_digest", profile_digest);
  json.add("feasible", feasible);
  json.add("budget", budget_bytes);
  json.add("predicted_peak", predicted_peak_bytes);
  json.add("least_budget", least_budget_bytes);
  json.add("overhead", predicted_overhead);
  json.add("lower_bound", lower_bound);
  json.add("peak_at", peak_at);
  json.add("limit", limit);
  json.add("positions", cuts.positions);
  json.add("groups", group_pairs);
  json.add("keep", kept_rows);
  if (!offload.places.empty()) {
    json.add("offload", detail::to_json(offload));
    json.add("offloaded", offloaded_bytes);
    json.add("wait_us", predicted_wait_us);
  }
  json.add_rows("phases", phase_rows);
  json.add_rows("ops", op_rows);
  return json.take();
}

MemoryPlan MemoryPlan::from_json(std::string_view text, const StepProfile& profile,
                                 const std::string& source) {
  profile.validate();
  return detail::read_memory_plan(detail::parse_json(text, "memory plan", source), source, "",
                                  profile);
}

MemoryPlan detail::read_memory_plan(const JsonNode& root, const std::string& source,
                                    const std::string& path, const StepProfile& profile) {
  const JsonValue value = memory_plan_value(root, source, path, "Plan for this step.");
  value.check_members(
      {"profile_digest", "feasible", "budget", "predicted_peak", "least_budget", "overhead",
       "lower_bound", "peak_at", "limit", "positions", "groups", "keep", "phases", "ops"},
      {"offload", "offloaded", "wait_us"});
  MemoryPlan plan;
  for (const JsonValue& row : value.at("ops").items()) plan.ops.push_back(read_op(row));
  check_ops(value.at("ops"), plan, profile);
  read_numbers(value, plan);
  if (value.has("offload") || value.has("offloaded") || value.has("wait_us"))
    read_offload(value, plan);
  const std::string digest = profile.digest();
  if (plan.profile_digest != digest)
    value.at("profile_digest").fail(digest + ", the step's", plan.profile_digest);
  read_cuts(value, plan.cuts);
  check_plan_cuts(value, plan.cuts, profile);
  plan.profile = std::make_shared<const StepProfile>(profile);
  plan.frontier = {{plan.predicted_peak_bytes, plan.predicted_overhead}};
  return plan;
}

std::string MemoryPlanFile::to_json() const {
  std::string text = "{\"" + std::string(format_key) + "\": " + std::to_string(format_version);
  text += ",\n\"made_with\": " + nlohmann::json(made_with).dump();
  text += ",\n\"profile\": " + plan.profile->to_json();
  text += ",\n\"plan\": " + plan.to_json() + "}\n";
  return text;
}

MemoryPlanFile MemoryPlanFile::from_json(std::string_view text, const std::string& source) {
  const detail::JsonNode root = detail::parse_json(text, "memory plan", source);
  const JsonValue value = detail::memory_plan_value(root, source);
  value.check_members({format_key, "made_with", "profile", "plan"}, {});
  if (value.at(format_key).integer() != format_version)
    value.at(format_key).fail(std::to_string(format_version), value.at(format_key).shown());
  MemoryPlanFile file;
  for (const auto& [key, member] : value.at("made_with").members())
    file.made_with[key] = member.string();
  const StepProfile profile = detail::read_step_profile(value.at("profile"));
  file.plan = detail::read_memory_plan(value.at("plan").node(), source, "plan", profile);
  return file;
}

void MemoryPlanFile::save(const std::string& path) const {
  detail::write_text_file(path, to_json());
}

MemoryPlanFile MemoryPlanFile::load(const std::string& path) {
  return from_json(detail::read_text_file(path), path);
}

}  // namespace remat
