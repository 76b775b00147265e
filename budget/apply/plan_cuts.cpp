// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/plan_cuts.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/engine/planned_cuts.h>
#include <remat/inspect/recorder.h>

namespace remat {
namespace {

/// After a step has left its plan, each segment makes this share (1/16) of the forward's bytes.
constexpr int64_t kRestShare = 16;

/// A step that makes up to this share (1/20) more bytes than measured is still the planned one.
constexpr int64_t kBytesShare = 20;

std::vector<uint32_t> numbers(const std::vector<int32_t>& values) {
  return {values.begin(), values.end()};
}

ExpectedTape::Record expected_record(const StepRecord& record) {
  std::vector<std::pair<uint32_t, uint32_t>> writes;
  for (const StepWrite& write : record.writes) {
    writes.emplace_back(static_cast<uint32_t>(write.before), static_cast<uint32_t>(write.after));
  }
  return {.op = record.op,
          .reads = ExpectedTape::hash_reads(record.op, numbers(record.reads)),
          .makes = ExpectedTape::hash_makes(numbers(record.makes), writes)};
}

ExpectedTape expected_of(const StepProfile& profile) {
  ExpectedTape expected;
  expected.without_cpu = !profile.device.empty();
  for (const StepRecord& record : profile.records)
    expected.records.push_back(expected_record(record));
  for (const StepSlot& slot : profile.slots) {
    expected.slots.push_back(
        {.record = static_cast<uint32_t>(slot.record),
         .value = slot.value < 0 ? ExpectedTape::kNoValue : static_cast<uint32_t>(slot.value),
         .is_dropped = slot.is_dropped()});
  }
  return expected;
}

int64_t bytes_made(const StepProfile& profile, const StepRecord& record) {
  int64_t bytes = 0;
  for (const int32_t value : record.makes)
    bytes += profile.values[static_cast<size_t>(value)].bytes;
  return bytes;
}

int64_t bytes_made(const StepProfile& profile) {
  int64_t bytes = 0;
  for (const StepRecord& record : profile.records) bytes += bytes_made(profile, record);
  return bytes;
}

/// Sets for each record the most bytes that the step may have made by then: those measured, plus a
/// share of all bytes because sizes may depend on data.
void limit_bytes(ExpectedTape& expected, const StepProfile& profile) {
  if (!profile.other_devices.empty()) return;  // bytes on those devices are unknown
  int64_t bytes = bytes_made(profile) / kBytesShare;
  for (const auto i : c10::irange(profile.records.size())) {
    bytes += bytes_made(profile, profile.records[i]);
    expected.records[i].most_bytes = static_cast<size_t>(bytes);
  }
}

void tell_recorder(std::string_view region, const MemoryPlan& plan) {
  Recorder::tell_plan(region,
                      {.budget = plan.budget_bytes,
                       .predicted_peak = plan.predicted_peak_bytes,
                       .plain_peak = plan.profile->plain_peak_bytes},
                      [&] { return plan.to_json(); });
}

}  // namespace

std::shared_ptr<PlannedCuts> cuts_of(const StepCuts& planned) {
  auto cuts = std::make_shared<PlannedCuts>();
  for (const int32_t position : planned.positions)
    cuts->positions.push_back(static_cast<size_t>(position));
  for (const auto& [first, end] : planned.groups)
    cuts->groups.push_back({static_cast<size_t>(first), static_cast<size_t>(end)});
  cuts->keep.emplace();
  for (const KeptResult& kept : planned.keep)
    cuts->keep->push_back({.record = static_cast<size_t>(kept.record),
                           .result = static_cast<size_t>(kept.result),
                           .policy = kept.policy});
  return cuts;
}

std::shared_ptr<PlannedCuts> cuts_of(const StepCuts& planned, const StepProfile& measured) {
  std::shared_ptr<PlannedCuts> cuts = cuts_of(planned);
  cuts->expected = std::make_shared<const ExpectedTape>(expected_of(measured));
  cuts->rest_bytes = static_cast<size_t>(std::max<int64_t>(1, bytes_made(measured) / kRestShare));
  return cuts;
}

std::shared_ptr<PlannedCuts> cuts_of(const MemoryPlan& plan) {
  TORCH_CHECK_VALUE(plan.feasible, "[memory plan] feasible: expected a plan within its budget of ",
                    plan.budget_bytes, " bytes, got the one that needs least, ",
                    plan.least_budget_bytes, ". It is ", plan.limit,
                    ". Plan for that much, or make the step smaller there.");
  std::shared_ptr<PlannedCuts> cuts = cuts_of(plan.cuts, *plan.profile);
  ExpectedTape expected = *cuts->expected;
  limit_bytes(expected, *plan.profile);
  expected.on_use = [plan](std::string_view region) { tell_recorder(region, plan); };
  cuts->expected = std::make_shared<const ExpectedTape>(std::move(expected));
  if (!plan.offload.places.empty()) cuts->offload = plan.offload;
  return cuts;
}

}  // namespace remat
