// SPDX-License-Identifier: BSD-3-Clause

// In which order a step asks for what it has put away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace remat::detail {

/// Learns the order of a step for the next one that puts the same sizes; until then, and in other
/// steps, the last put comes first.
class StepOrder {
 public:
  /// The number of what is put next.
  size_t put(int64_t bytes);
  size_t size() const { return bytes_.size(); }

  /// It was asked for.
  void got(size_t number);

  /// What will be asked for after it.
  std::optional<size_t> after(size_t number) const;

  /// All that was put is gone: the next put begins a step.
  void end_step();

  /// As end_step(), and nothing was learned.
  void forget();

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);

  bool is_as_learned() const { return matches_ && bytes_.size() == learned_bytes_.size(); }

  std::vector<int64_t> bytes_;
  std::vector<size_t> after_;  // As in this step so far
  size_t last_ = kUnknown;     // Asked for

  std::vector<int64_t> learned_bytes_;
  std::vector<size_t> learned_after_;
  bool matches_ = true;
};

}  // namespace remat::detail
