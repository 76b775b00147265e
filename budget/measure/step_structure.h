// SPDX-License-Identifier: BSD-3-Clause

// From a forward's log and tape to numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>

namespace remat {

/// Which op of a log made each record, and which record's each op is.
struct RecordsOfOps {
  RecordsOfOps(const StepLog& log, size_t records);

  std::vector<uint32_t> op_of;      ///< By record.
  std::vector<uint32_t> record_of;  ///< By op: the one that it made, else the last one before.
};

/// Where the log of a step tells of the memory of a value.
struct ResultOfOp {
  uint32_t value;
  uint32_t op;
  uint32_t result;  ///< Counted from the op's first in StepLog::results.
};

/// Of all values that records make. They are the same for each step with the same ops.
std::vector<ResultOfOp> results_of(const StepLog& log, const RecordsOfOps& records,
                                   const Tape& tape);

/// Records, values, slots, bytes and lifetimes of a step, without times and nodes. `tape` is that
/// of `region`, cut into one segment, and `log` that of the forward that recorded it, which counts
/// memory of `device` alone.
StepProfile structure_of(const StepLog& log, const RecordsOfOps& records, const Region& region,
                         const Tape& tape, std::string name, c10::Device device);

}  // namespace remat
