// SPDX-License-Identifier: BSD-3-Clause

// JSON of plans.
#include <nlohmann/json.hpp>

#include <remat/planner/plan.h>

namespace remat {

namespace {

using nlohmann::ordered_json;

ordered_json row_json(const PlanRow& row) {
  ordered_json ops = ordered_json::object();
  for (const PlanOp& op : row.ops) ops[op.name] = policy_name(op.policy);
  return {{"position", row.position},
          {"region", row.region},
          {"part", row.part},
          {"run", {row.run_first, row.run_count}},
          {"ops", std::move(ops)}};
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
                       {"predicted_peak", or_null(simulated_peak_bytes)},
                       {"simulated_peak", or_null(simulated_peak_bytes)},
                       {"lower_bound", or_null(lower_bound)},
                       {"gap", or_null(overhead - lower_bound)},
                       {"table", std::move(rows)},
                       {"groups", std::move(group_list)},
                       {"profile", profile_digest},
                       {"least_budget", least_budget_bytes}};
  if (!feasible) json["least_at"] = peak_region;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace remat
