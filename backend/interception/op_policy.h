// SPDX-License-Identifier: BSD-3-Clause

// Applying a region's policy to ops, which become named calls.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include <remat/engine/op_call.h>
#include <remat/engine/region_policy.h>
#include <remat/policy/policy.h>

namespace remat {

/// Caches the last policy's answer for one op, if the answer depends only on the op's name. Usable
/// from any thread.
class StaticDecision {
 public:
  std::optional<Policy> get(const RegionPolicy& policy, const OpInfo& op, bool is_composite);

 private:
  std::atomic<uint64_t> last_{0};
};

/// If `policy` makes a named call of the op on `stack`, calls `run`, or in a replay takes the kept
/// results instead. Returns false, and does nothing, if the policy makes no call of the op.
bool run_by_policy(const RegionPolicy& policy, StaticDecision& decision, const OpInfo& op,
                   bool is_composite, torch::jit::Stack& stack, c10::function_ref<void()> run);

/// Like run_by_policy(), for a collective in a region without a policy.
bool run_communication(StaticDecision& decision, const OpInfo& op, torch::jit::Stack& stack,
                       c10::function_ref<void()> run);

}  // namespace remat
