// SPDX-License-Identifier: BSD-3-Clause

// Messages of auto_checkpoint() to its user.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/engine/planned_cuts.h>
#include <remat/planner/memory_plan.h>

namespace remat {

/// Prefix of messages: "[auto_checkpoint] 'model': ".
std::string message_prefix(const std::string& name);

std::string measuring_message(const PlannedCuts& cuts, int steps);

/// For example "fits 8.00 GB: peak 7.90 GB of 12.10 GB, 12.0 % of the step runs again; no plan is
/// below 11.0 %".
std::string plan_message(const MemoryPlan& plan);

/// The error for an infeasible plan.
std::string limit_message(const std::string& name, const MemoryPlan& plan,
                          const std::string& budget);

/// Passes lines to the callbacks of the options. A callback may ask for the plan, or throw, so call
/// all functions but queue() without a lock. Any thread.
class Messages {
 public:
  /// `options` must outlive this object.
  explicit Messages(const AutoCheckpointOptions& options) : options_(options) {}

  void progress(const std::string& line) const;
  /// Keeps a line of progress until send_queued().
  void queue(std::string line);
  void send_queued();

  void warn_once(const std::string& line);
  /// Warns with `caution` if it is not empty, and if no call has done so before.
  void caution_once(const std::string& caution);

 private:
  void warn(const std::string& line) const;

  const AutoCheckpointOptions& options_;
  std::mutex mutex_;
  std::vector<std::string> queued_;
  std::atomic<bool> has_warned_{false};
  std::atomic<bool> has_cautioned_{false};
};

}  // namespace remat
