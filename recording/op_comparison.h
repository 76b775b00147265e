// SPDX-License-Identifier: BSD-3-Clause

// Compares an op with the same op in another run or in a replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/recording_diff.h>

#include "recorded_op_words.h"

namespace remat::detail {

struct ComparedOp {
  const Recording& recording;
  size_t place = 0;  ///< Index into Recording::ops.
  std::vector<TensorOrigin> origins;

  const OpEvent& event() const { return recording.ops[place]; }
  std::string_view name() const { return recording.text(event().name); }
};

/// Pairs the outside storages of two runs.
class OutsidePairs {
 public:
  /// For two runs: storages are paired in the order in which they are met.
  OutsidePairs() = default;
  /// For a replay: a storage matches itself, unless only the replay has it.
  explicit OutsidePairs(std::unordered_map<uint64_t, size_t> of_forward)
      : of_forward_(std::move(of_forward)), is_same_run_(true) {}

  /// Pairs the two storages; false if the first was expected to match another one. `strictly`: a
  /// storage that only the replay has does not match either.
  bool match(const TensorOrigin& a, const TensorOrigin& b, bool strictly);

 private:
  std::unordered_map<uint64_t, size_t> of_forward_;
  std::unordered_map<uint64_t, uint64_t> seconds_;  // by first
  std::unordered_map<uint64_t, uint64_t> firsts_;   // by second
  bool is_same_run_ = false;
};

/// The first difference between two ops of one name; nullopt if there is none. `strictly` is as in
/// OutsidePairs::match().
std::optional<DifferenceCause> cause_of(const ComparedOp& a, const ComparedOp& b,
                                        OutsidePairs& pairs, bool strictly);

/// True for a number that the program passed as a tensor. A recording has no values of tensors.
bool is_number(const Recording& recording, const RecordedTensor& tensor);

/// True for ops that compute nothing, such as "aten::select.int".
bool is_view(std::string_view op);

/// True for casts, such as "aten::_to_copy".
bool is_cast(std::string_view op);

/// True for dropout, normalisations, and the ops that they call.
bool depends_on_training(std::string_view op);

}  // namespace remat::detail
