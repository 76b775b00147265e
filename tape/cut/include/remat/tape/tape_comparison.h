// SPDX-License-Identifier: BSD-3-Clause

// Comparing a tape, while it is recorded, with the tape that its cuts were made for.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/expected_tape.h>
#include <remat/engine/export.h>
#include <remat/engine/first_position.h>
#include <remat/engine/op_call.h>
#include <remat/tape/tape.h>

namespace remat {

/// Compares up to the first difference; later results have no meaning. Not thread-safe.
class REMAT_API TapeComparison {
 public:
  /// `differs` may be empty: see PlannedCuts::differs.
  TapeComparison(const Tape& tape, std::shared_ptr<const ExpectedTape> expected,
                 std::function<void(const TapeDifference&)> differs)
      : tape_(tape), expected_(std::move(expected)), differs_(std::move(differs)) {}

  /// An op is about to run, which may make a record.
  void begin_op(const OpInfo& op) {
    op_ = &op;
    record_ = tape_.records().size();
  }

  /// True if the op of begin_op() has made the expected record, which is the tape's last.
  bool is_record_expected();

  /// True if `bytes`, allocated up to the last record, are no more than expected.
  bool are_bytes_expected(size_t bytes) const {
    return expected_->any_ops || bytes <= expected_->records[record_].most_bytes;
  }

  /// Notes an extra value that exists only because the tape is cut. For comparison it maps to
  /// `original`, and later values shift down by one.
  void add_memory(uint32_t value, uint32_t original) {
    memories_.emplace_back(value, number_of(original));
  }

  /// The expected slot `number`; null if there is none. Its value is kNoValue if no record made it.
  const ExpectedTape::Slot* slot(size_t number) const {
    return number < expected_->slots.size() ? &expected_->slots[number] : nullptr;
  }
  /// Returns the value's number in the form of ExpectedTape::Slot::value.
  uint32_t value_of_slot(const TapeRef& ref) const;

  /// True if the function may end now, after it has saved `slots` tensors.
  bool is_end_expected(size_t slots) const {
    const bool has_all = tape_.records().size() == expected_->records.size();
    return (expected_->any_ops || has_all) && slots == expected_->slots.size();
  }

  TapeDifference other_op() const;
  TapeDifference more_bytes(size_t bytes) const;
  /// Slot `number` differs: the recorded slot has `value`, numbered like ExpectedTape::Slot::value.
  TapeDifference other_slot(size_t number, uint32_t value) const;
  TapeDifference other_end(size_t slots) const;

  void report(const TapeDifference& difference) const;

 private:
  uint32_t number_of(uint32_t value) const;
  std::string expected_op(size_t record) const;
  uint64_t hash_reads(const TapeRecord& record);
  uint64_t hash_makes(const TapeRecord& record);

  const Tape& tape_;
  const std::shared_ptr<const ExpectedTape> expected_;
  const std::function<void(const TapeDifference&)> differs_;
  const OpInfo* op_ = nullptr;  // The op that began last.
  size_t record_ = 0;           // Index of the record that the op may make.
  std::vector<std::pair<uint32_t, uint32_t>>
      memories_;  // Value and number of its original, sorted.
  // Buffers for one op, members so that their memory is reused.
  c10::SmallVector<uint32_t, 8> values_;
  FirstPosition<uint32_t> seen_;
  c10::SmallVector<std::pair<uint32_t, uint32_t>, 2> writes_;
};

}  // namespace remat
