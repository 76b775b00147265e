// SPDX-License-Identifier: BSD-3-Clause

// Builds the step profile of an eager program: values, slots, nodes and their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/planner/step_profile.h>

namespace remat::test {

struct EagerOp {
  std::string name;
  std::vector<int32_t> reads;
  std::vector<int64_t> makes;            ///< Bytes of each result; the first result has a gradient
  std::vector<int32_t> saves = {};       ///< Values that the backward needs
  std::vector<int32_t> saves_made = {};  ///< Saved results, as indices into makes
  double us = 1;
  int64_t workspace = 0;
  int64_t weight_gradient = 0;  ///< Further bytes that the node makes
  bool reads_data = true;
  bool differentiable = true;
};

/// The program holds each result until its last reader has run. Nodes run in reverse.
class EagerProgram {
 public:
  int32_t outside(int64_t bytes);  ///< An argument, weight or constant
  std::vector<int32_t> run(const EagerOp& op);
  int32_t run1(const EagerOp& op) { return run(op).front(); }
  /// Writes `target` in place; the backward needs the result. Returns the new value.
  int32_t write(const std::string& name, int32_t target, double us);
  void hold(int32_t value, int32_t until_record);  ///< Holds a value longer than its readers
  void place(std::string where) { where_ = std::move(where); }

  int32_t records() const { return static_cast<int32_t>(profile_.records.size()); }

  /// Ends the program. The last result is the loss, which is held.
  StepProfile finish(const std::string& name);

 private:
  StepRecord& add_record(const std::string& name, double us);
  void set_forward_bytes();
  void add_nodes();
  void set_node_bytes();

  StepProfile profile_;
  std::string where_;
  std::vector<int64_t> weight_gradients_;  // Per record
  std::vector<char> differentiable_;       // Per record
};

}  // namespace remat::test
