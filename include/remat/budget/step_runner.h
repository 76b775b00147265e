// SPDX-License-Identifier: BSD-3-Clause

// A function whose steps are measured and planned, as the budget's rooms call it.
#pragma once

#include <remat/tape/cuts.h>
#include <remat/tape/export.h>

namespace remat {

class StepRecording;

/// The forward of a step.
class REMAT_API StepForward {
 public:
  StepForward() = default;
  StepForward(const StepForward&) = delete;
  StepForward& operator=(const StepForward&) = delete;
  virtual ~StepForward() = default;

  /// Calls the function as a region that is replayed from a strict tape with these cuts, and holds
  /// what it returns. Empty cuts: as no region. `recording`: null if the call is not measured.
  virtual void forward(const Cuts& cuts, StepRecording* recording) = 0;

  /// The next forward is run for its measurement alone. Ops' writes are undone; what else the
  /// function changes is for drop() to put back.
  virtual void before_dropped() {}

  /// Lets go of what the function has returned.
  virtual void drop() noexcept = 0;
};

/// A whole step.
class REMAT_API StepRunner : public StepForward {
 public:
  /// Runs backward from what the function has returned.
  virtual void backward() = 0;
};

}  // namespace remat
