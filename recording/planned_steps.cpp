// SPDX-License-Identifier: BSD-3-Clause

#include "planned_steps.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

namespace remat::detail {
namespace {

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

std::vector<std::pair<TimeNs, TimeNs>> planned_steps(const Recording& recording,
                                                     const OnThread<PlanEvent>& plan,
                                                     TimeNs end_ns) {
  const std::string& name = recording.text(plan.label);
  // Times of the first and the last event by the whole region, since events name its segments.
  std::map<uint64_t, std::pair<TimeNs, TimeNs>> steps;
  std::unordered_map<uint64_t, uint64_t> wholes;
  const auto note_event = [&](uint64_t whole, TimeNs time_ns) {
    TimeNs& last_ns = steps.try_emplace(whole, time_ns, time_ns).first->second.second;
    last_ns = std::max(last_ns, time_ns);
  };
  for (const auto& region : recording.regions) {
    const bool is_planned = region.thread == plan.thread && region.time_ns >= plan.time_ns &&
                            recording.text(region.label).find(name) != std::string::npos;
    if (!is_planned && steps.count(region.whole) == 0) continue;
    note_event(region.whole, region.time_ns);
    wholes.emplace(region.region, region.whole);
  }
  for (const auto& load : recording.loads) {
    const auto whole = wholes.find(load.region);
    if (whole != wholes.end()) note_event(whole->second, load.time_ns);
  }
  std::vector<std::pair<TimeNs, TimeNs>> planned;
  for (const auto& [whole, step] : steps) {
    const auto [begin_ns, last_ns] = step;
    if (begin_ns >= end_ns) continue;
    planned.emplace_back(begin_ns, next_op_of_program(recording, plan.thread, last_ns));
  }
  if (planned.empty()) planned.emplace_back(plan.time_ns, end_ns);
  return planned;
}

}  // namespace remat::detail
