// SPDX-License-Identifier: BSD-3-Clause

// Random choices for random programs.
#include "fuzz/choices.h"

#include <array>

#include "fuzz/device.h"

namespace remat::fuzz {
namespace {

constexpr std::array kRuleOps = {"aten::sin",        "aten::tanh",
                                 "aten::mm",         "aten::bmm",
                                 "aten::mul",        "aten::softmax",
                                 "aten::*norm*",     "aten::add",
                                 "aten::cat",        "aten::clone",
                                 "aten::index",      "aten::relu",
                                 "aten::transpose",  "aten::linear",
                                 "aten::matmul",     "aten::scaled_dot_product_attention",
                                 "aten::einsum",     "aten::lstm_cell",
                                 "aten::layer_norm", "aten::sort",
                                 "aten::topk",       "aten::max.dim",
                                 "aten::var_mean",   "aten::split",
                                 "aten::unbind",     "aten::_foreach_mul",
                                 "aten::bernoulli_", "aten::rand_like",
                                 "aten::select",     "aten::dropout",
                                 "aten::mul_",       "aten::add_",
                                 "aten::copy_",      "tag:pointwise",
                                 "tag:view",         "*",
                                 "aten::rrelu*",     "aten::*pad*",
                                 "fuzz::*",          "aten::embedding*"};
constexpr std::array kPresets = {"save_matmuls", "save_compute_intensive", "recompute_pointwise"};
constexpr std::array kPolicies = {Policy::kSave, Policy::kSave, Policy::kOffload,
                                  Policy::kRecompute};

}  // namespace

Freed Choices::freed(Use use) {
  if (pick(8)) return Freed::kNone;
  const bool runs_again =
      use == Use::kTwoInFlight || use == Use::kTwoSteps || use == Use::kTwoThreads;
  return runs_again || pick(2) ? Freed::kUntilBackward : Freed::kForGood;
}

RegionChoices Choices::region() {
  RegionChoices region{.early_stop = pick(4) != 0,
                       .compares = pick(4) != 0,
                       .hooks = one_in(8),
                       .rules = rules(),
                       .tape = pick(2) != 0};
  for (size_t i = one_in(2) ? 0 : 1 + pick(3); i > 0; --i)
    region.cuts.push_back(static_cast<double>(pick(100)) / 100);
  region.group = pick(2) * (2 + pick(2));
  return region;
}

/// Most regions get no rules.
std::vector<OpRule> Choices::rules() {
  if (pick(3)) return {};
  if (one_in(5))
    return {{.op = kPresets[pick(kPresets.size())], .policy = Policy::kSave, .is_preset = true}};
  std::vector<OpRule> rules;
  for (size_t i = 1 + pick(3); i > 0; --i)
    rules.push_back(
        {.op = kRuleOps[pick(kRuleOps.size())], .policy = kPolicies[pick(kPolicies.size())]});
  return rules;
}

CallChoices Choices::call(bool may_recompute) {
  return {.policy = kPolicies[pick(kPolicies.size() - (may_recompute ? 0 : 1))],
          .keep = pick(3) ? Keep::kInnermostRegion : Keep::kAllRegions,
          .no_grad = one_in(8)};
}

ScopeChoices Choices::scope() {
  using Kind = ScopeChoices::Kind;
  constexpr std::array kOnCuda = {Kind::kDevice, Kind::kStream, Kind::kStream, Kind::kSecondStream};
  if (on_cuda() && pick(2)) return {.kind = kOnCuda[pick(kOnCuda.size())]};
  constexpr std::array kKinds = {Kind::kAutocast, Kind::kAutocast, Kind::kHooks, Kind::kNames};
  return {.kind = kKinds[pick(kKinds.size())]};
}

}  // namespace remat::fuzz
