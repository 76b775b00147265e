// SPDX-License-Identifier: BSD-3-Clause

#include "plan_words.h"

#include <c10/util/Exception.h>

#include <sstream>

#include <remat/planner/budget_text.h>
#include <remat/planner/digest.h>

namespace remat {

std::string where_of(const std::string& name) {
  return c10::str("[auto_checkpoint] '", name, "': ");
}

std::string words_of_measuring(const Cuts& cuts, int steps) {
  return c10::str("measures ", cuts.expected->records.size(), " ops in ", cuts.segment_count(),
                  " segments; the plan comes after ", steps, steps == 1 ? " step" : " steps");
}

namespace {

std::string words_of_overhead(const MemoryPlan& plan) {
  if (plan.offload.places.empty())
    return "runs again; no plan is below " + detail::percent_text(plan.lower_bound, 1);
  if (plan.offloaded_bytes == 0) return "runs again; moves nothing, as no copy saves time";
  return "runs again or waits; moves " + detail::bytes_text(plan.offloaded_bytes);
}

}  // namespace

std::string words_of(const MemoryPlan& plan) {
  return c10::str("fits ", detail::bytes_text(plan.budget_bytes), ": peak ",
                  detail::bytes_text(plan.predicted_peak_bytes), " of ",
                  detail::bytes_text(plan.profile->plain_peak_bytes), ", ",
                  detail::percent_text(plan.predicted_overhead, 1), " of the step ",
                  words_of_overhead(plan));
}

std::string words_of_limit(const std::string& name, const MemoryPlan& plan,
                           const std::string& budget) {
  return c10::str(where_of(name), "memory_budget: expected ", plan.least_budget_bytes,
                  " bytes or more (", detail::bytes_text(plan.least_budget_bytes), "), got ",
                  plan.budget_bytes, " (\"", budget, "\"). The least is ", plan.limit,
                  ". Give that much, or make the step smaller there.");
}

std::map<std::string, std::string> words_of(const StepSignature& signature) {
  std::string sizes;
  for (const int64_t size : signature.sizes) sizes += std::to_string(size) + " ";
  return {{"arguments", detail::hex_text(signature.kind)}, {"sizes", sizes}};
}

StepSignature signature_from(const std::map<std::string, std::string>& words) {
  StepSignature signature;
  std::istringstream kind(words.at("arguments"));
  kind >> std::hex >> signature.kind;
  std::istringstream sizes(words.at("sizes"));
  for (int64_t size = 0; sizes >> size;) signature.sizes.push_back(size);
  return signature;
}

}  // namespace remat
