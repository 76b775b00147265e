// SPDX-License-Identifier: BSD-3-Clause

#include "step_decision.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <stdexcept>

#include <remat/planner/memory_planner.h>
#include <remat/planner/step_cuts.h>

namespace remat {
namespace {

constexpr const char* kPlain = "plain";
constexpr const char* kLimit = "limit ";
constexpr const char* kPlan = "plan ";

/// Writes the budget, then positions, groups and kept results as lists of numbers, each list after
/// its length. A kept result also says whether it is offloaded.
std::string text_of_plan(const MemoryPlan& plan) {
  std::ostringstream text;
  text << kPlan << plan.budget_bytes << ' ' << plan.cuts.positions.size();
  for (const int32_t position : plan.cuts.positions) text << ' ' << position;
  text << ' ' << plan.cuts.groups.size();
  for (const auto& [first, end] : plan.cuts.groups) text << ' ' << first << ' ' << end;
  text << ' ' << plan.cuts.keep.size();
  for (const KeptResult& kept : plan.cuts.keep)
    text << ' ' << kept.record << ' ' << kept.result << ' ' << (kept.policy == Policy::kOffload);
  return text.str();
}

template <class Number>
Number read(std::istream& text) {
  Number number{};
  if (!(text >> number)) throw std::invalid_argument("a plan that is cut short");
  return number;
}

StepCuts read_cuts(std::istream& text) {
  StepCuts cuts;
  for (auto left = read<size_t>(text); left > 0; --left)
    cuts.positions.push_back(read<int32_t>(text));
  for (auto left = read<size_t>(text); left > 0; --left) {
    const auto first = read<int32_t>(text);
    cuts.groups.emplace_back(first, read<int32_t>(text));
  }
  for (auto left = read<size_t>(text); left > 0; --left) {
    const auto record = read<int32_t>(text);
    const auto result = read<int32_t>(text);
    const bool is_moved = read<int>(text) != 0;
    cuts.keep.push_back({record, result, is_moved ? Policy::kOffload : Policy::kSave});
  }
  return cuts;
}

}  // namespace

std::string text_of(const std::optional<StepDecision>& decision) {
  if (!decision) return "";
  if (decision->plan) return text_of_plan(*decision->plan);
  return decision->limit.empty() ? kPlain : kLimit + decision->limit;
}

std::optional<StepDecision> decision_from(const std::string& text, const StepProfile& profile,
                                          const OffloadTerms& offload) {
  if (text.empty()) return std::nullopt;
  if (text == kPlain) return StepDecision{};
  const std::string limit = kLimit;
  if (text.starts_with(limit)) return StepDecision{.limit = text.substr(limit.size())};
  std::istringstream rest(text.substr(std::string(kPlan).size()));
  const auto budget_bytes = read<int64_t>(rest);
  const StepCuts cuts = read_cuts(rest);
  const bool moves = std::any_of(cuts.keep.begin(), cuts.keep.end(), [](const KeptResult& kept) {
    return kept.policy == Policy::kOffload;
  });
  if (moves && offload.places.empty())
    throw std::invalid_argument("one that moves results, and no store (offload) here");
  return StepDecision{
      .plan = plan_of_cuts(profile, cuts, budget_bytes, moves ? offload : OffloadTerms())};
}

}  // namespace remat
