// SPDX-License-Identifier: BSD-3-Clause

// The structure of a step as numbers, from a forward's log and tape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>

namespace remat {

/// The mapping between a log's ops and the records of a tape.
struct RecordsOfOps {
  RecordsOfOps(const StepLog& log, size_t records);

  std::vector<uint32_t> op_of;  ///< For each record: the op that made it
  /// For each op: the record it made, or else the last one before.
  std::vector<uint32_t> record_of;
};

/// Where a value's memory is in the log of a step.
struct ResultOfOp {
  uint32_t value;  ///< As numbered in the profile
  uint32_t op;
  uint32_t result;  ///< Relative to the op's first in StepLog::results
};

/// The numbers of a tape's values in its profile. Memory that a segment has made for itself has the
/// number of the value in whose place it is, so that cuts do not change the numbers.
std::vector<uint32_t> profile_values(const Tape& tape);

/// The results of all values that records make. Equal for all steps with the same ops.
std::vector<ResultOfOp> results_of(const StepLog& log, const RecordsOfOps& records,
                                   const Tape& tape);

/// Records, values, slots, bytes and lifetimes of a step, without times and nodes. `tape` is the
/// tape of `region`, of which the forward has kept nothing; `log` is the log of that forward, which
/// counts only memory of `device`.
StepProfile structure_of(const StepLog& log, const RecordsOfOps& records, const Region& region,
                         const Tape& tape, std::string name, c10::Device device);

}  // namespace remat
