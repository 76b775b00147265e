// SPDX-License-Identifier: BSD-3-Clause

// A replay and its forward as comparable sequences of ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

#include "op_nesting.h"
#include "recorded_op_words.h"
#include "storage_origins.h"

namespace remat::detail {

/// Data that all replays of a recording share.
struct RecordedOrigins {
  explicit RecordedOrigins(const Recording& all)
      : recording(all), nesting(all), arguments(argument_origins(all)) {}

  const Recording& recording;
  const OpNesting nesting;
  const std::vector<std::vector<StorageOrigin>> arguments;
};

class ReplaySides {
 public:
  /// `origins` must outlive this object.
  ReplaySides(const RecordedOrigins& origins, const FunctionReplay& replay);

  /// Ops without views, casts of weights (which may come from a cache) and ops that do not run
  /// again.
  const std::vector<size_t>& forward() const { return forward_; }
  const std::vector<size_t>& again() const { return again_; }

  std::vector<TensorOrigin> forward_origins(size_t op) const { return origins(op, in_forward_); }
  std::vector<TensorOrigin> replay_origins(size_t op) const { return origins(op, in_again_); }

  /// Numbers of outside storages in the order in which the forward first used them.
  const std::unordered_map<uint64_t, size_t>& outside() const { return outside_; }

 private:
  using Numbers = std::unordered_map<size_t, size_t>;

  std::vector<size_t> compared(const FunctionReplay& replay, const std::vector<size_t>& ops);
  bool is_weight_cast(size_t op, const std::unordered_set<size_t>& inside) const;
  std::vector<TensorOrigin> origins(size_t op, const Numbers& numbers) const;
  TensorOrigin origin(const StorageOrigin& origin, const Numbers& numbers) const;

  const RecordedOrigins& all_;
  std::unordered_set<size_t> left_out_;
  std::vector<size_t> forward_;
  std::vector<size_t> again_;
  Numbers in_forward_;
  Numbers in_again_;
  std::unordered_map<uint64_t, size_t> outside_;
};

}  // namespace remat::detail
