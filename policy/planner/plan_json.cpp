// SPDX-License-Identifier: BSD-3-Clause

// JSON of plans.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <remat/planner/json_tree.h>
#include <remat/planner/planner.h>

#include "planned_chain.h"

namespace remat {

namespace {

using detail::JsonValue;
using nlohmann::ordered_json;

std::string all_digits(double value) {
  return ordered_json(value).dump();
}

ordered_json row_json(const PlanRow& row) {
  ordered_json ops = ordered_json::object();
  for (const PlanOp& op : row.ops) ops[op.name] = policy_name(op.policy);
  return {{"position", row.position},
          {"region", row.region},
          {"part", row.part},
          {"run", {row.run_first, row.run_count}},
          {"ops", std::move(ops)}};
}

ordered_json held_json(const std::vector<PeakHolding>& held) {
  ordered_json all = ordered_json::array();
  for (const PeakHolding& holding : held) {
    all.push_back({{"what", holding.what},
                   {"position", holding.position},
                   {"region", holding.region},
                   {"slot", holding.slot},
                   {"bytes", holding.bytes}});
  }
  return all;
}

Policy read_policy(const JsonValue& value) {
  const std::string name = value.string();
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    if (name == policy_name(policy)) return policy;
  }
  value.fail("\"SAVE\" or \"RECOMPUTE\"", value.shown());
}

std::vector<int> read_pair(const JsonValue& value) {
  std::vector<int> pair = value.ints();
  if (pair.size() != 2) value.fail("two numbers", value.shown());
  return pair;
}

int read_int(const JsonValue& value) {
  const int64_t number = value.integer();
  if (number < 0 || number > 1000000) value.fail("0 to 1000000", value.shown());
  return static_cast<int>(number);
}

PlanRow read_row(const JsonValue& value) {
  value.check_members({"position", "region", "run", "ops"}, {"part"});
  PlanRow row;
  row.position = read_int(value.at("position"));
  row.region = value.at("region").string();
  if (value.has("part")) row.part = read_int(value.at("part"));
  const std::vector<int> run = read_pair(value.at("run"));
  row.run_first = run[0];
  row.run_count = run[1];
  for (const auto& [name, policy] : value.at("ops").members())
    row.ops.push_back({name, read_policy(policy)});
  return row;
}

/// Compares a number in the file with the computed one. Files have all digits.
void check_number(const JsonValue& said, double comes_out) {
  if (said.number() == comes_out) return;
  said.fail(all_digits(comes_out) + ", what a replay comes to", said.shown());
}

void check_bytes(const JsonValue& said, int64_t comes_out, const char* of = "a replay") {
  if (said.integer() == comes_out) return;
  said.fail(std::to_string(comes_out) + ", what " + of + " comes to", said.shown());
}

void read_feasible(const JsonValue& value, const detail::PlannedChain& chain,
                   const detail::PlanFault& fail, Plan& plan) {
  for (const JsonValue& row : value.at("table").items()) plan.table.push_back(read_row(row));
  for (const JsonValue& group : value.at("groups").items()) {
    const std::vector<int> pair = read_pair(group);
    plan.groups.push_back({pair[0], pair[1]});
  }
  const detail::Schedule schedule = detail::to_schedule(chain, plan, fail);
  detail::add_costs(chain, schedule, plan);
  check_number(value.at("total_time"), plan.total_time_us);
  check_number(value.at("overhead"), plan.overhead);
  check_bytes(value.at("predicted_peak"), plan.predicted_peak_bytes);
  check_bytes(value.at("simulated_peak"), plan.simulated_peak_bytes);
  plan.lower_bound = value.at("lower_bound").number();
  if (!(plan.lower_bound >= 0 && plan.lower_bound <= plan.overhead)) {
    value.at("lower_bound").fail("0 to the overhead", value.at("lower_bound").shown());
  }
  plan.gap = plan.overhead - plan.lower_bound;
  check_number(value.at("gap"), plan.gap);
  if (plan.simulated_peak_bytes > plan.budget_bytes) {
    value.at("budget").fail("at least the peak, " + std::to_string(plan.simulated_peak_bytes),
                            value.at("budget").shown());
  }
  if (plan.least_budget_bytes < 0 || plan.least_budget_bytes > plan.simulated_peak_bytes) {
    value.at("least_budget")
        .fail("0 to the peak of a plan that fits", value.at("least_budget").shown());
  }
  for (const char* key : {"least_at", "held"}) {
    if (value.has(key)) value.at(key).fail("nothing in a plan that is feasible", "a value");
  }
}

void read_infeasible(const JsonValue& value, Plan& plan) {
  for (const char* key :
       {"total_time", "overhead", "predicted_peak", "simulated_peak", "lower_bound", "gap"}) {
    if (!value.at(key).is_null())
      value.at(key).fail("null in a plan that is not feasible", value.at(key).shown());
  }
  for (const char* key : {"table", "groups"}) {
    if (!value.at(key).items().empty())
      value.at(key).fail("an empty array in a plan that is not feasible", value.at(key).shown());
  }
  if (plan.least_budget_bytes <= plan.budget_bytes) {
    value.at("least_budget")
        .fail("more than the budget of a plan that is not feasible",
              value.at("least_budget").shown());
  }
  if (value.has("least_at")) plan.peak_region = value.at("least_at").string();
  if (!value.has("held")) return;
  for (const JsonValue& item : value.at("held").items()) {
    item.check_members({"what", "position", "region", "slot", "bytes"}, {});
    plan.held.push_back({item.at("what").string(), read_int(item.at("position")),
                         item.at("region").string(), item.at("slot").string(),
                         item.at("bytes").integer()});
  }
}

Plan read(const detail::JsonNode& root, const Profile& profile, const std::string& source) {
  const JsonValue value(root, {"plan", source, ""});
  value.check_members(
      {"feasible", "budget", "total_time", "overhead", "predicted_peak", "simulated_peak",
       "lower_bound", "gap", "table", "groups", "profile", "least_budget"},
      {"least_at", "held"});
  const detail::PlannedChain chain(profile, detail::OptionClass::kNone);
  Plan plan;
  plan.profile_digest = value.at("profile").string();
  if (plan.profile_digest != chain.original.digest()) {
    value.at("profile").fail("\"" + chain.original.digest() + "\", the digest of the profile",
                             value.at("profile").shown());
  }
  plan.feasible = value.at("feasible").boolean();
  plan.budget_bytes = value.at("budget").integer();
  plan.least_budget_bytes = value.at("least_budget").integer();
  if (plan.budget_bytes < 0) value.at("budget").fail("0 bytes or more", value.at("budget").shown());
  const detail::PlanFault fail = [&](const std::string& place, const std::string& expected,
                                     const std::string& got) {
    JsonValue(detail::node_at(root, place), {"plan", source, place}).fail(expected, got);
  };
  if (plan.feasible) {
    read_feasible(value, chain, fail, plan);
  } else {
    read_infeasible(value, plan);
  }
  return plan;
}

bool same(const PeakHolding& a, const PeakHolding& b) {
  return a.what == b.what && a.position == b.position && a.region == b.region && a.slot == b.slot &&
         a.bytes == b.bytes;
}

constexpr const char* planning = "planning with these options";

/// Bounds are sums of doubles, which compilers may add in different orders, so last digits may
/// differ.
void check_bound(const JsonValue& value, const Plan& plan, double bound) {
  if (std::abs(plan.lower_bound - bound) <= 1e-9) return;
  const JsonValue said = value.at("lower_bound");
  said.fail(all_digits(bound) + ", what " + planning + " comes to", said.shown());
}

void check_infeasible(const JsonValue& value, const Plan& said, const Plan& planned) {
  if (value.has("least_at") && said.peak_region != planned.peak_region) {
    value.at("least_at")
        .fail("\"" + planned.peak_region + "\", what " + planning + " comes to",
              value.at("least_at").shown());
  }
  if (!value.has("held")) return;
  const bool all_same = std::equal(said.held.begin(), said.held.end(), planned.held.begin(),
                                   planned.held.end(), same);
  if (!all_same) {
    value.at("held").fail(held_json(planned.held).dump() + ", what " + planning + " comes to",
                          held_json(said.held).dump());
  }
}

}  // namespace

std::string Plan::to_json() const {
  ordered_json rows = ordered_json::array();
  ordered_json group_list = ordered_json::array();
  if (feasible) {
    for (const PlanRow& row : table) rows.push_back(row_json(row));
    for (const PlanGroup& group : groups) group_list.push_back({group.first, group.next});
  }
  const auto or_null = [&](auto value) {
    return feasible ? ordered_json(value) : ordered_json(nullptr);
  };
  ordered_json json = {{"feasible", feasible},
                       {"budget", budget_bytes},
                       {"total_time", or_null(total_time_us)},
                       {"overhead", or_null(overhead)},
                       {"predicted_peak", or_null(predicted_peak_bytes)},
                       {"simulated_peak", or_null(simulated_peak_bytes)},
                       {"lower_bound", or_null(lower_bound)},
                       {"gap", or_null(gap)},
                       {"table", std::move(rows)},
                       {"groups", std::move(group_list)},
                       {"profile", profile_digest},
                       {"least_budget", least_budget_bytes}};
  if (!feasible) {
    json["least_at"] = peak_region;
    json["held"] = held_json(held);
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Plan Plan::from_json(std::string_view text, const Profile& profile, const std::string& source) {
  const detail::JsonNode root = detail::parse_json(text, "plan", source);
  return read(root, profile, source);
}

Plan Planner::read_plan(std::string_view text, const std::string& source) const {
  const detail::JsonNode root = detail::parse_json(text, "plan", source);
  const JsonValue value(root, {"plan", source, ""});
  Plan said = read(root, profile(), source);
  Plan planned = plan(said.budget_bytes);
  if (!said.feasible) {
    check_bytes(value.at("least_budget"), planned.least_budget_bytes, planning);
    check_infeasible(value, said, planned);
    return planned;
  }
  const int64_t least = std::min(planned.least_budget_bytes, said.simulated_peak_bytes);
  check_bytes(value.at("least_budget"), least, planning);
  // A plan from elsewhere may fit where no plan of this planner's class does.
  check_bound(value, said, planned.feasible ? planned.lower_bound : lower_bound(said.budget_bytes));
  return said;
}

}  // namespace remat
