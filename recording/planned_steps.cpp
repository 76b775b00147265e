// SPDX-License-Identifier: BSD-3-Clause

#include "planned_steps.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

namespace remat::detail {
namespace {

/// Times of the first and last event of a region that ran by the plan.
struct Span {
  TimeNs begin_ns = 0;
  TimeNs last_ns = 0;
};

/// Time just before the thread's next op of the program after `time_ns`, else the end of its ops.
TimeNs next_op_of_program(const Recording& recording, uint32_t thread, TimeNs time_ns) {
  TimeNs last = time_ns;
  for (const auto& op : recording.ops) {
    if (op.thread != thread) continue;
    last = std::max(last, op.end_ns);
    const bool is_of_program = op.phase == OpPhase::kOutside || op.phase == OpPhase::kForward;
    if (op.begin_ns > time_ns && op.depth == 0 && is_of_program) return op.begin_ns - 1;
  }
  return last;
}

}  // namespace

std::vector<PlannedStep> planned_steps(const Recording& recording, const OnThread<PlanEvent>& plan,
                                       TimeNs end_ns) {
  const std::string& name = recording.text(plan.label);
  std::map<uint64_t, Span> steps;  // by the whole region, since events name its segments
  std::unordered_map<uint64_t, uint64_t> wholes;
  for (const auto& region : recording.regions) {
    const bool is_planned = region.thread == plan.thread && region.time_ns >= plan.time_ns &&
                            recording.text(region.label).find(name) != std::string::npos;
    if (!is_planned && steps.count(region.whole) == 0) continue;
    const auto [step, is_new] =
        steps.try_emplace(region.whole, Span{region.time_ns, region.time_ns});
    step->second.last_ns = std::max(step->second.last_ns, region.time_ns);
    wholes.emplace(region.region, region.whole);
  }
  for (const auto& load : recording.loads) {
    const auto whole = wholes.find(load.region);
    if (whole == wholes.end()) continue;
    Span& step = steps[whole->second];
    step.last_ns = std::max(step.last_ns, load.time_ns);
  }
  std::vector<PlannedStep> planned;
  for (const auto& [whole, step] : steps) {
    if (step.begin_ns >= end_ns) continue;
    planned.push_back({step.begin_ns, next_op_of_program(recording, plan.thread, step.last_ns)});
  }
  if (planned.empty()) planned.push_back({plan.time_ns, end_ns});
  return planned;
}

}  // namespace remat::detail
