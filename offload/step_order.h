// SPDX-License-Identifier: BSD-3-Clause

// The order in which a step asks for the storages that it has put away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace remat::detail {

/// Learns the order in which a step asks for storages, and predicts it for the next step that puts
/// the same sizes. Otherwise predicts the reverse order of put(). A storage that is asked for
/// repeatedly is predicted as often.
class StepOrder {
 public:
  /// Returns the number of the storage that is put next.
  size_t put(int64_t bytes);
  size_t size() const { return bytes_.size(); }

  /// Records that storage `number` was asked for.
  void got(size_t number);

  /// The storage that will be asked for after the last one and `skipped` more; nullopt if unknown.
  std::optional<size_t> next(size_t skipped) const;

  /// Ends a step, when all that was put is gone. The next put() begins a new one.
  void end_step();

  /// As end_step(), without learning anything.
  void forget();

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
  static constexpr size_t kMostAsks = size_t{1} << 18;

  bool is_as_learned() const { return matches_ && bytes_.size() == learned_bytes_.size(); }
  void find_place(size_t number);

  std::vector<int64_t> bytes_;
  std::vector<size_t> asks_;  // of this step so far
  size_t last_ = kUnknown;    // the last one asked for

  std::vector<int64_t> learned_bytes_;
  std::vector<size_t> learned_asks_;
  size_t place_ = 0;  // in learned_asks_, after the last one asked for
  bool matches_ = true;
};

}  // namespace remat::detail
