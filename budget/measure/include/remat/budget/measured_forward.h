// SPDX-License-Identifier: BSD-3-Clause

// The forward that tells the structure of a step.
#pragma once

#include <memory>
#include <string>

#include <remat/budget/step_log.h>
#include <remat/budget/step_measurement.h>
#include <remat/budget/step_recording.h>
#include <remat/budget/step_runner.h>
#include <remat/tape/export.h>

namespace remat {

/// While it lives what the function has returned may be held.
class HeldResult {
 public:
  explicit HeldResult(StepForward& step) : step_(step) {}
  HeldResult(const HeldResult&) = delete;
  HeldResult& operator=(const HeldResult&) = delete;
  ~HeldResult() { step_.drop(); }

 private:
  StepForward& step_;
};

/// Runs one forward of which nothing is kept, and ends the recording, which may undo what it has
/// written. Null and throws as StepMeasurement::of(); with `refusal` null in place of its
/// exception, whose text it then has.
REMAT_API std::unique_ptr<StepMeasurement> measure_forward(StepForward& step,
                                                           const std::string& name,
                                                           std::unique_ptr<StepRecording> recording,
                                                           std::string* refusal = nullptr);

/// Why the nodes of a backward are not in a profile: one runs twice, or after those of a later one.
/// "" if they are.
REMAT_API std::string find_backward_fault(const StepLog& step);

}  // namespace remat
