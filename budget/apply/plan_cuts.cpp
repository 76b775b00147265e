// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/plan_cuts.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace remat {
namespace {

/// Of the bytes that the forward makes: a segment of the rest is that share of them.
constexpr int64_t kRestShare = 16;

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

}  // namespace

Cuts cuts_of(const StepCuts& planned) {
  Cuts cuts;
  for (const int32_t position : planned.positions)
    cuts.positions.push_back(static_cast<size_t>(position));
  for (const auto& [first, end] : planned.groups)
    cuts.groups.push_back({static_cast<size_t>(first), static_cast<size_t>(end)});
  cuts.keep.emplace();
  for (const KeptResult& kept : planned.keep)
    cuts.keep->push_back(
        {.record = static_cast<size_t>(kept.record), .result = static_cast<size_t>(kept.result)});
  return cuts;
}

Cuts cuts_of(const MemoryPlan& plan) {
  Cuts cuts = cuts_of(plan.cuts);
  cuts.expected = expected_tape(*plan.profile);
  cuts.rest_bytes = rest_bytes(*plan.profile);
  return cuts;
}

std::shared_ptr<const ExpectedTape> expected_tape(const StepProfile& profile) {
  auto expected = std::make_shared<ExpectedTape>();
  for (const StepRecord& record : profile.records)
    expected->records.push_back(expected_record(record));
  for (const StepSlot& slot : profile.slots) {
    expected->slots.push_back(
        {.record = static_cast<uint32_t>(slot.record),
         .value = slot.value < 0 ? ExpectedTape::kNoValue : static_cast<uint32_t>(slot.value)});
  }
  return expected;
}

size_t rest_bytes(const StepProfile& profile) {
  int64_t made = 0;
  for (const StepRecord& record : profile.records) {
    for (const int32_t value : record.makes)
      made += profile.values[static_cast<size_t>(value)].bytes;
  }
  return static_cast<size_t>(std::max<int64_t>(1, made / kRestShare));
}

}  // namespace remat
