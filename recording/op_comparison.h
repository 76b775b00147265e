// SPDX-License-Identifier: BSD-3-Clause

// In what two ops differ that are the same one in two runs.
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
  size_t place = 0;  ///< In Recording::ops
  std::vector<TensorOrigin> origins;

  const OpEvent& event() const { return recording.ops[place]; }
  std::string_view name() const { return recording.text(event().name); }
};

/// Which storage from outside of the second run is which of the first.
class OutsidePairs {
 public:
  /// Of two runs: storages are paired as they are met.
  OutsidePairs() = default;
  /// Of a replay: a storage is the one that it was in the forward, unless only the replay has it.
  explicit OutsidePairs(std::unordered_map<uint64_t, size_t> of_forward)
      : of_forward_(std::move(of_forward)), is_same_run_(true) {}

  /// Pairs them, or says that another one than the first was expected. `strictly`: one that only
  /// the replay has is another one, too.
  bool match(const TensorOrigin& a, const TensorOrigin& b, bool strictly);

 private:
  std::unordered_map<uint64_t, size_t> of_forward_;
  std::unordered_map<uint64_t, uint64_t> seconds_;  // by first
  std::unordered_map<uint64_t, uint64_t> firsts_;   // by second
  bool is_same_run_ = false;
};

/// The first thing in which they differ, of two ops of one name. `strictly`: see OutsidePairs.
std::optional<DifferenceCause> cause_of(const ComparedOp& a, const ComparedOp& b,
                                        OutsidePairs& pairs, bool strictly);

/// A number that the program has passed for a tensor; the recording has no values of tensors.
bool is_number(const Recording& recording, const RecordedTensor& tensor);

/// What computes nothing: "aten::select.int".
bool is_view(std::string_view op);

/// "aten::_to_copy"
bool is_cast(std::string_view op);

/// Dropout, normalisations, and what they call.
bool depends_on_training(std::string_view op);

}  // namespace remat::detail
