// SPDX-License-Identifier: BSD-3-Clause

// A program's ops as sequences that can be compared with those of another run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/recording.h>

#include "op_nesting.h"
#include "recorded_op_words.h"
#include "storage_origins.h"

namespace remat::detail {

class ProgramStreams {
 public:
  explicit ProgramStreams(const Recording& recording);

  /// Outermost ops by stream (see StreamKind), as indices into Recording::ops.
  const std::vector<std::vector<size_t>>& streams() const { return streams_; }

  /// Origins of the op's arguments. Call it in the order of the streams and of their ops.
  std::vector<TensorOrigin> origins(uint32_t stream, size_t op);

 private:
  void add(size_t op);
  TensorOrigin made_by(size_t maker) const;

  const Recording& recording_;
  const OpNesting nesting_;
  const std::vector<std::vector<StorageOrigin>> origins_;
  const std::vector<size_t> forwards_;
  std::unordered_map<uint32_t, uint32_t> ranks_;  // by thread, in the order in which threads began
  std::vector<std::vector<size_t>> streams_;
  std::unordered_map<size_t, std::pair<uint32_t, size_t>> places_;  // stream and number by op
  std::vector<std::unordered_map<uint64_t, size_t>> outside_;       // numbers by stream and storage
};

/// Labels of the replayed regions, in order.
std::vector<std::string> replayed_labels(const Recording& recording);

}  // namespace remat::detail
