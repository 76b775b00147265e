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

/// Collects what steps cost, to be added to the profile of their structure.
class StepCosts {
 public:
  /// `structure` and `records` are to outlive it.
  StepCosts(const StepLog& structure, const RecordsOfOps& records, std::vector<ResultOfOp> results);

  /// True if the step's ops and saved tensors are those of the structure, and its backward has run:
  /// only then it counts.
  bool add(const StepLog& step);

  /// Medians of the times of all steps, equal records together; the most bytes.
  void fill(StepProfile& profile) const;

  /// True if a value had not the same size in all steps.
  bool has_varying_sizes() const { return has_varying_sizes_; }

 private:
  struct Sample {
    std::vector<double> forward_us;   // by record
    std::vector<double> backward_us;  // by record
    double other_us = 0;              // of the forward, between ops
    std::vector<StepLog::Rerun> reruns;
    double tape_us = 0;  // of replays, besides the records that they run: per record
    std::vector<StepNode> nodes;
    std::vector<int32_t> node_of_slot;
    std::vector<int32_t> released;  // by results_, as StepValue's
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
