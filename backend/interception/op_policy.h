// SPDX-License-Identifier: BSD-3-Clause

// SAVE, OFFLOAD or RECOMPUTE of an op: a region's policy makes a named call of it.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include <remat/policy/policy.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region_policy.h>

namespace remat {

/// What the policy used last says of one op, where the op's name alone decides. Any thread.
class StaticDecision {
 public:
  std::optional<Policy> get(const RegionPolicy& policy, const OpInfo& op, bool is_composite);

 private:
  std::atomic<uint64_t> last_{0};
};

/// Runs the op on `stack` as the named call that `policy` makes of it: by `run`, or not at all in a
/// replay. False, and nothing is done, if it makes none of it.
bool run_by_policy(const RegionPolicy& policy, StaticDecision& decision, const OpInfo& op,
                   bool is_composite, torch::jit::Stack& stack, c10::function_ref<void()> run);

/// As run_by_policy(), for a collective in a region without a policy.
bool run_communication(StaticDecision& decision, const OpInfo& op, torch::jit::Stack& stack,
                       c10::function_ref<void()> run);

}  // namespace remat
