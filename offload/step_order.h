// SPDX-License-Identifier: BSD-3-Clause

// The storages of a step, and the order in which the step asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace remat::detail {

struct MovedStorage;

/// Learns the order in which a step asks for storages, and predicts it for the next step that puts
/// the same sizes. Otherwise predicts the reverse order of put(). A storage that is asked for
/// repeatedly is predicted as often. A step ends when all that was put is gone.
class StepOrder {
 public:
  /// Gives the storage the next sequence number.
  void put(MovedStorage& moved);

  /// Records that the storage was asked for. Returns false if it is of an earlier step.
  bool got(const MovedStorage& moved);

  /// Call it when the storage is gone.
  void drop(const MovedStorage& moved);

  /// The storage that will be asked for after the last one and `skipped` more, null if it is gone;
  /// nullopt if unknown.
  std::optional<MovedStorage*> next(size_t skipped) const;

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);

  bool is_as_learned() const { return matches_ && bytes_.size() == learned_bytes_.size(); }
  void find_place(size_t number);
  void end_step();

  // Bytes and storages of this step, by number.
  std::vector<int64_t> bytes_;
  std::vector<MovedStorage*> stored_;  // null: gone
  uint64_t first_sequence_ = 0;        // of number 0
  uint64_t next_sequence_ = 0;
  size_t live_ = 0;           // storages that are not gone, of all steps
  std::vector<size_t> asks_;  // of this step so far
  size_t last_ = kUnknown;    // the last one asked for

  std::vector<int64_t> learned_bytes_;
  std::vector<size_t> learned_asks_;
  size_t place_ = 0;  // in learned_asks_, after the last one asked for
  bool matches_ = true;
};

}  // namespace remat::detail
