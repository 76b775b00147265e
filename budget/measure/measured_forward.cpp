// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/measured_forward.h>

#include <c10/util/Exception.h>

#include <unordered_set>

#include <remat/budget/plain_call_cuts.h>
#include <remat/tape/cuts.h>

namespace remat {

// A cut tape, here with one segment, keeps all records. The result is dropped before writes are
// undone.
std::unique_ptr<StepMeasurement> measure_forward(StepForward& step, const std::string& name,
                                                 std::unique_ptr<StepRecording> recording,
                                                 std::string* refusal) {
  step.before_dropped();
  const HeldResult held(step);
  Cuts nothing = plain_call_cuts();
  nothing.keep.emplace();
  try {
    step.forward(nothing, recording.get());
  } catch (...) {
    recording->keep_writes();
    throw;
  }
  recording->end_forward();
  try {
    return StepMeasurement::of(name, recording->finish());
  } catch (const c10::NotImplementedError& error) {
    if (!refusal) throw;
    *refusal = error.what_without_backtrace();
    return nullptr;
  }
}

std::string find_backward_fault(const StepLog& step) {
  std::unordered_set<uint64_t> seen;
  for (const StepLog::Node& node : step.nodes) {
    if (node.sequence == StepLog::kNoSequence || seen.insert(node.sequence).second) continue;
    return "expected backward to run each node once, got " + node.name +
           " twice (retain_graph). Run one backward from the sum of the losses.";
  }
  if (!step.goes_on) return "";
  return "expected backward to run what the forward has made, got " + step.later_node +
         " in between, which a backward has made (create_graph), or another step. Run one backward "
         "for each forward.";
}

}  // namespace remat
