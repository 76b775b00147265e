// SPDX-License-Identifier: BSD-3-Clause

// Measurement of a StepProfile from a forward and a few steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/tape/export.h>

namespace remat {

/// Measures the steps of one function: the first on a tape whose forward keeps nothing (see
/// unknown_cuts()), the others on any tape.
class REMAT_API StepMeasurement {
 public:
  /// `forward` is the log of the first step's forward, whose results are alive; `name` is the
  /// function's. Null if
  /// autograd has saved nothing, so that there is nothing to plan. Throws NotImplementedError if
  /// the region contains other regions.
  static std::unique_ptr<StepMeasurement> of(std::string name, StepLog forward);

  StepMeasurement(const StepMeasurement&) = delete;
  StepMeasurement& operator=(const StepMeasurement&) = delete;
  ~StepMeasurement();

  /// Adds a step with its backward, such as the first one. Returns false, and ignores it, if it ran other ops
  /// or saved other tensors, or if none of its nodes ran. Afterwards `step` counts only memory of
  /// device().
  bool add_step(StepLog& step);

  /// The device whose memory counts: the accelerator on which the forward has made most, or else
  /// the CPU.
  c10::Device device() const;

  /// Bytes of outside memory that the function used: weights, buffers, arguments.
  int64_t outside_bytes() const;

  /// True if the size of a value varied between steps; the profile then has the largest.
  bool has_varying_sizes() const;

  /// The outside tensors that require grad and that `forward` used, with the graphs that made them.
  /// Moves them out, so only the first call returns them.
  std::vector<at::Tensor> take_leaves();

  /// The profile so far. It has no times and nodes if no step has counted yet.
  StepProfile profile() const;

 private:
  struct Parts;
  explicit StepMeasurement(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace remat
