// SPDX-License-Identifier: BSD-3-Clause

// Measurement of a StepProfile from a few steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/budget/step_structure.h>
#include <remat/engine/export.h>
#include <remat/engine/planned_cuts.h>
#include <remat/planner/step_profile.h>

namespace remat {

/// Measures the steps of one function: the first runs with first_cuts(), the others with any cuts.
class REMAT_API StepMeasurement {
 public:
  /// Cuts for a step with unknown ops, whose forward keeps nothing.
  static std::shared_ptr<const PlannedCuts> first_cuts();

  /// `forward`: log of the first step's forward, whose results must be alive. `name`: the
  /// function's. Returns null if autograd has saved nothing, so that there is nothing to plan.
  /// Throws NotImplementedError if the function contains regions of its own.
  static std::unique_ptr<StepMeasurement> of(std::string name, StepLog forward);

  StepMeasurement(const StepMeasurement&) = delete;
  StepMeasurement& operator=(const StepMeasurement&) = delete;

  /// Adds a step (also the first) after its backward. Returns false, and ignores the step, if it
  /// ran other ops or saved other tensors, or if none of its nodes ran. Afterwards `step` counts
  /// only memory of the device that the profile is for: the accelerator on which the forward has
  /// made most memory, or else the CPU.
  bool add_step(StepLog& step);

  /// Bytes of outside memory that the function used: weights, buffers, arguments.
  int64_t outside_bytes() const { return outside_bytes_; }

  /// True if the size of a value varied between steps; the profile then has the largest.
  bool has_varying_sizes() const { return has_varying_sizes_; }

  /// The outside tensors that require grad and that `forward` used, with the graphs that made them.
  /// Moves them out, so only the first call returns them.
  std::vector<at::Tensor> take_leaves();

  /// The profile so far, with the largest byte counts of all steps, and the median times of all
  /// steps and of all records of one kind. It has no times and nodes if no step has been added yet.
  StepProfile profile() const;

 private:
  /// The costs of one step.
  struct Sample {
    std::vector<double> forward_us;   // by record
    std::vector<double> backward_us;  // by record
    double other_us = 0;              // time of the forward between ops
    std::vector<std::pair<uint32_t, int64_t>> reruns;
    double tape_us = 0;  // replays without the records they run, per record
    std::vector<StepNode> nodes;
    std::vector<int32_t> node_of_slot;
    std::vector<int32_t> released;  // StepValue::released, by StepStructure::results
    int64_t gap_bytes = 0;
  };

  StepMeasurement(std::string name, StepLog forward, const Region& region, const Tape& tape);
  bool has_same_ops(const StepLog& step) const;
  std::vector<int32_t> records_of_nodes(const StepLog& step) const;
  void add_times(const StepLog& step, Sample& sample) const;
  void add_sizes(const StepLog& step);
  void fill_times(StepProfile& profile) const;
  void fill_nodes(StepProfile& profile) const;
  void fill_replay_times(StepProfile& profile) const;
  c10::ArrayRef<Sample> timed() const;
  void fill_values(StepProfile& profile) const;
  int32_t latest_release(size_t result) const;

  const c10::Device device_;
  const StepLog forward_;
  const StepStructure structure_;
  std::vector<at::Tensor> leaves_;
  int64_t outside_bytes_ = 0;
  std::vector<int64_t> sizes_;  // largest size seen, by StepStructure::results
  bool has_varying_sizes_ = false;
  std::vector<Sample> samples_;
};

}  // namespace remat
