// SPDX-License-Identifier: BSD-3-Clause

// The forward that determines the structure of a step.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/step_log.h>
#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/budget/step_runner.h>
#include <remat/tape/export.h>

namespace remat {

/// Drops the function's result when destroyed.
class HeldResult {
 public:
  explicit HeldResult(StepForward& step) : step_(step) {}
  HeldResult(const HeldResult&) = delete;
  HeldResult& operator=(const HeldResult&) = delete;
  ~HeldResult() { step_.drop(); }

 private:
  StepForward& step_;
};

/// Runs one forward that keeps nothing, and ends the recording, which may undo its writes. Returns
/// null and throws as StepMeasurement::of(). With `refusal`, returns null and stores the text of a
/// NotImplementedError there instead of throwing it.
REMAT_API std::unique_ptr<StepMeasurement> measure_forward(StepForward& step,
                                                           const std::string& name,
                                                           std::unique_ptr<StepRecording> recording,
                                                           std::string* refusal = nullptr);

/// Explains why the nodes of a backward pass cannot be profiled: one runs twice, or runs after
/// nodes of a later backward. "" if they can.
REMAT_API std::string find_backward_fault(const StepLog& step);

}  // namespace remat
