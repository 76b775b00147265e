// SPDX-License-Identifier: BSD-3-Clause

// The interface through which steps of a function are run to measure and plan them.
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
  /// its result. With empty cuts the function runs outside of regions. `recording`: null if the
  /// call is not measured.
  virtual void forward(const Cuts& cuts, StepRecording* recording) = 0;

  /// Drops the function's result.
  virtual void drop() noexcept = 0;
};

/// A whole step.
class REMAT_API StepRunner : public StepForward {
 public:
  /// Runs backward from the function's result.
  virtual void backward() = 0;
};

}  // namespace remat
