// SPDX-License-Identifier: BSD-3-Clause

// The structure of a step as numbers, from a forward's log and tape.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/engine/region.h>
#include <remat/planner/step_profile.h>
#include <remat/tape/tape.h>

namespace remat {

/// A step without times and nodes, and the ops in the log that made its records and values. Equal
/// for all steps with the same ops.
struct StepStructure {
  /// Where a value's memory is in the log of a step.
  struct Result {
    uint32_t value;  ///< Index into StepProfile::values
    uint32_t op;
    uint32_t result;  ///< Index in StepLog::results, less StepLog::Op::first_result
  };

  /// `tape`: the tape of `region`, whose forward has kept nothing. `log`: the log of that forward,
  /// which counts only memory of `device`.
  static StepStructure of(const StepLog& log, const Region& region, const Tape& tape,
                          std::string name, c10::Device device);

  StepProfile profile{};          ///< Records, values, slots, bytes and lifetimes
  std::vector<uint32_t> op_of{};  ///< For each record: the op that made it
  /// For each op: the record it made, or else the last record before the op.
  std::vector<uint32_t> record_of{};
  std::vector<Result> results{};  ///< The results of all values that records make
};

}  // namespace remat
