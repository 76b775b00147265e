// SPDX-License-Identifier: BSD-3-Clause

// Times of records, and the nodes of backward with their bytes.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/memory_plan/step_profile.h>

#include "step_structure.h"

namespace remat {

/// Collects the costs of steps, to be added to the profile of their structure.
class StepCosts {
 public:
  /// `structure` and `records` must outlive this object.
  StepCosts(const StepLog& structure, const RecordsOfOps& records, std::vector<ResultOfOp> results);

  /// Adds a step. Returns false, and ignores it, unless its ops and saved tensors are those of the
  /// structure and its backward has run.
  bool add(const StepLog& step);

  /// Fills in the median times of all steps, with equal records pooled, and the largest byte
  /// counts.
  void fill(StepProfile& profile) const;

  /// True if the size of a value varied between steps.
  bool has_varying_sizes() const { return has_varying_sizes_; }

 private:
  struct Sample {
    std::vector<double> forward_us;   // by record
    std::vector<double> backward_us;  // by record
    double other_us = 0;              // time of the forward between ops
    std::vector<StepLog::Rerun> reruns;
    double tape_us = 0;  // time of replays besides their records, per record
    std::vector<StepNode> nodes;
    std::vector<int32_t> node_of_slot;
    std::vector<int32_t> released;  // by results_, as in StepValue
    int64_t gap_bytes = 0;
  };

  bool has_same_ops(const StepLog& step) const;
  std::vector<int32_t> records_of_nodes(const StepLog& step) const;
  void add_times(const StepLog& step, Sample& sample) const;
  void add_sizes(const StepLog& step);
  void fill_nodes(StepProfile& profile) const;
  void fill_replay_times(StepProfile& profile) const;
  c10::ArrayRef<Sample> timed() const;
  void fill_sizes(StepProfile& profile) const;
  void fill_releases(StepProfile& profile) const;
  int32_t latest_release(size_t result) const;

  const StepLog& structure_;
  const RecordsOfOps& records_;
  const std::vector<ResultOfOp> results_;
  std::vector<int64_t> sizes_;  // by results_, the largest seen
  bool has_varying_sizes_ = false;
  std::vector<Sample> samples_;
};

}  // namespace remat
