// SPDX-License-Identifier: BSD-3-Clause

#include "messages.h"

#include <c10/util/Exception.h>

#include <utility>

#include <remat/policy/budget_text.h>

namespace remat {

std::string message_prefix(const std::string& name) {
  return c10::str("[auto_checkpoint] '", name, "': ");
}

std::string measuring_message(const PlannedCuts& cuts, int steps) {
  return c10::str("measures ", cuts.expected->records.size(), " ops in ", cuts.segment_count(),
                  " segments; the plan comes after ", steps, steps == 1 ? " step" : " steps");
}

namespace {

std::string overhead_text(const MemoryPlan& plan) {
  if (plan.offload.places.empty())
    return "runs again; no plan is below " + detail::percent_text(plan.lower_bound, 1);
  if (plan.offloaded_bytes == 0) return "runs again; moves nothing, as no copy saves time";
  return "runs again or waits; moves " + detail::bytes_text(plan.offloaded_bytes);
}

}  // namespace

std::string plan_message(const MemoryPlan& plan) {
  return c10::str("fits ", detail::bytes_text(plan.budget_bytes), ": peak ",
                  detail::bytes_text(plan.predicted_peak_bytes), " of ",
                  detail::bytes_text(plan.profile->plain_peak_bytes), ", ",
                  detail::percent_text(plan.predicted_overhead, 1), " of the step ",
                  overhead_text(plan));
}

std::string limit_message(const std::string& name, const MemoryPlan& plan,
                          const std::string& budget) {
  return c10::str(message_prefix(name), "memory_budget: expected ", plan.least_budget_bytes,
                  " bytes or more (", detail::bytes_text(plan.least_budget_bytes), "), got ",
                  plan.budget_bytes, " (\"", budget, "\"). The least is ", plan.limit,
                  ". Give that much, or make the step smaller there.");
}

void Messages::progress(const std::string& line) const {
  if (options_.progress) options_.progress(message_prefix(options_.name) + line);
}

void Messages::queue(std::string line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queued_.push_back(std::move(line));
}

void Messages::send_queued() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::vector<std::string> lines = std::exchange(queued_, {});
  lock.unlock();
  for (const std::string& line : lines) progress(line);
}

void Messages::warn(const std::string& line) const {
  if (options_.warn) return options_.warn(message_prefix(options_.name) + line);
  TORCH_WARN(message_prefix(options_.name), line);
}

void Messages::warn_once(const std::string& line) {
  if (!has_warned_.exchange(true)) warn(line);
}

void Messages::caution_once(const std::string& caution) {
  if (!caution.empty() && !has_cautioned_.exchange(true)) warn(caution + ".");
}

}  // namespace remat
