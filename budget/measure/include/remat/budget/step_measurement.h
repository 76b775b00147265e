// SPDX-License-Identifier: BSD-3-Clause

// From a forward and a few steps to a StepProfile.
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

/// What steps of one function cost. First one forward on a tape that is cut into one segment and
/// keeps nothing, whose result is dropped. Then steps on a tape that is cut, which keep little.
class REMAT_API StepMeasurement {
 public:
  /// `forward` is that of a region whose results are alive; `name` is the function's. Null if
  /// autograd has saved nothing, so that there is nothing to plan. Throws NotImplementedError if it
  /// has regions inside.
  static std::unique_ptr<StepMeasurement> of(std::string name, StepLog forward);

  StepMeasurement(const StepMeasurement&) = delete;
  StepMeasurement& operator=(const StepMeasurement&) = delete;
  ~StepMeasurement();

  /// A step with its backward, on any tape. False if it ran other ops, saved other tensors, or if
  /// only others have run backward: then it does not count. From now on `step` counts memory of
  /// device() alone.
  bool add_step(StepLog& step);

  /// The device whose memory counts: the accelerator on which the forward has made the most, else
  /// the CPU.
  c10::Device device() const;

  /// Of the memory from outside that the function met: weights, buffers, arguments.
  int64_t outside_bytes() const;

  /// True if a value had not the same size in all steps: the profile has the largest.
  bool has_varying_sizes() const;

  /// The tensors from outside that require grad, which `forward` met, with the graphs that have
  /// made them. Once: it holds them no longer then.
  std::vector<at::Tensor> take_leaves();

  /// The profile so far: without times and nodes, if no step has counted yet.
  StepProfile profile() const;

 private:
  struct Parts;
  explicit StepMeasurement(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace remat
