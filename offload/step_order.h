// SPDX-License-Identifier: BSD-3-Clause

// In which order a step asks for what it has put away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace remat::detail {

/// Learns in which order a step asks for the next one that puts the same sizes; until then, and in
/// other steps, the last put comes first. What a step asks for more than once comes as often.
class StepOrder {
 public:
  /// The number of what is put next.
  size_t put(int64_t bytes);
  size_t size() const { return bytes_.size(); }

  /// It was asked for.
  void got(size_t number);

  /// What will be asked for after that and `skipped` more; none: unknown.
  std::optional<size_t> next(size_t skipped) const;

  /// All that was put is gone: the next put begins a step.
  void end_step();

  /// As end_step(), and nothing was learned.
  void forget();

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
  static constexpr size_t kMostAsks = size_t{1} << 18;

  bool is_as_learned() const { return matches_ && bytes_.size() == learned_bytes_.size(); }
  void find_place(size_t number);

  std::vector<int64_t> bytes_;
  std::vector<size_t> asks_;  // Of this step so far
  size_t last_ = kUnknown;    // Asked for

  std::vector<int64_t> learned_bytes_;
  std::vector<size_t> learned_asks_;
  size_t place_ = 0;  // In learned_asks_, behind the last one that was asked for
  bool matches_ = true;
};

}  // namespace remat::detail
