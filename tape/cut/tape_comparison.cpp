// SPDX-License-Identifier: BSD-3-Clause

// Comparing records and slots with the expected ones.
#include <remat/tape/tape_comparison.h>

#include <algorithm>

#include <remat/engine/hidden_scopes.h>

namespace remat {

/// Returns the number that the value would have on a tape without cuts.
uint32_t TapeComparison::number_of(uint32_t value) const {
  if (C10_LIKELY(memories_.empty())) return value;
  const auto next =
      std::lower_bound(memories_.begin(), memories_.end(), value,
                       [](const auto& memory, uint32_t wanted) { return memory.first < wanted; });
  if (next != memories_.end() && next->first == value) return next->second;
  return value - static_cast<uint32_t>(next - memories_.begin());
}

std::string TapeComparison::expected_op(size_t record) const {
  return record < expected_->records.size() ? expected_->records[record].op : std::string();
}

uint64_t TapeComparison::hash_reads(const TapeRecord& record) {
  values_.clear();
  seen_.clear();
  for (const TapeRef& ref : tape_.refs(record)) {
    if (!ref.defined()) continue;
    const uint32_t number = number_of(ref.value);
    if (seen_.contains(number)) continue;
    seen_.add(number);
    values_.push_back(number);
  }
  return ExpectedTape::hash_reads(record.op->name_hash(), values_);
}

uint64_t TapeComparison::hash_makes(const TapeRecord& record) {
  values_.clear();
  writes_.clear();
  for (const TapeOutput& output : tape_.outputs(record))
    values_.push_back(number_of(output.ref.value));
  for (const TapeWrite& write : tape_.writes(record))
    writes_.emplace_back(number_of(write.before), number_of(write.after));
  return ExpectedTape::hash_makes(values_, writes_);
}

bool TapeComparison::is_record_expected() {
  if (expected_->any_ops) return true;
  if (record_ >= expected_->records.size()) return false;
  const ExpectedTape::Record& expected = expected_->records[record_];
  const TapeRecord& record = tape_.records().back();
  return expected.reads == hash_reads(record) && expected.makes == hash_makes(record);
}

uint32_t TapeComparison::value_of_slot(const TapeRef& ref) const {
  if (!ref.defined() || tape_.values()[ref.value].source != TapeValue::Source::kRecord)
    return ExpectedTape::kNoValue;
  return number_of(ref.value);
}

TapeDifference TapeComparison::other_op() const {
  return {.record = record_, .expected = expected_op(record_), .got = op_->name()};
}

TapeDifference TapeComparison::more_bytes(size_t bytes) const {
  return {.record = record_,
          .expected = op_->name(),
          .got = op_->name(),
          .most_bytes = expected_->records[record_].most_bytes,
          .got_bytes = bytes};
}

// An op saves tensors before its record is made, so a slot may be the first sign that another op
// runs than was planned.
TapeDifference TapeComparison::other_slot(size_t number, uint32_t value) const {
  const ExpectedTape::Slot* const expected = slot(number);
  const size_t record = expected ? std::min<size_t>(record_, expected->record) : record_;
  const bool is_of_op = record == record_ && op_;
  const std::string got = is_of_op ? op_->name() : expected_op(record);
  const std::string op = expected_->any_ops ? got : expected_op(record);
  const ExpectedTape::Slot got_slot{.record = static_cast<uint32_t>(record_), .value = value};
  return {.record = record,
          .expected = op,
          .got = got,
          .in_slot = op == got,
          .got_slot = got_slot,
          .slots = number};
}

TapeDifference TapeComparison::other_end(size_t slots) const {
  const size_t records = tape_.records().size();
  const ExpectedTape::Slot* const missing = slot(slots);
  const bool is_other_length = !expected_->any_ops && records != expected_->records.size();
  if (is_other_length || !missing) return {.record = records, .expected = expected_op(records)};
  const std::string op = expected_op(missing->record);
  return {.record = missing->record, .expected = op, .got = op, .in_slot = true, .slots = slots};
}

void TapeComparison::report(const TapeDifference& difference) const {
  if (!differs_) return;
  const SuspendScopes suspend;
  differs_(difference);
}

}  // namespace remat
