// SPDX-License-Identifier: BSD-3-Clause

// Kept values that leave the device, and the time when an offload engine sends them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/policy/offload_terms.h>

#include "step_needs.h"

namespace remat::detail {

/// Note [Peaks with OFFLOAD]
/// The speed of copies decides how long a step takes, but not its peak: an engine copies out at
/// most max_leaving_bytes at once, and prefetches at most prefetch_bytes. So an offloaded value
/// counts in full until it is sent, then as part of the leaving bytes, then as part of the
/// prefetched bytes until a replay asks for it, and in full again while it is in use. It is sent
/// with the first put after the program has dropped it; a value that no put follows stays.
class OffloadMoves {
 public:
  /// All arguments must outlive this object.
  OffloadMoves(const StepGraph& graph, const StepUnits& units, const OffloadTerms& terms)
      : graph_(graph), units_(units), terms_(terms), sent_at_(graph.profile.values.size(), never) {}

  /// True if offloading the value could save memory, if it is kept.
  bool may_move(int32_t value) const;

  /// Chooses the values that move. `flags`: a KeepFlag per value.
  void choose(const std::vector<HeldValue>& kept_at_root, const std::vector<char>& flags);

  /// Values given to the engine, ascending by maker; some of them stay.
  const std::vector<int32_t>& put() const { return put_; }
  bool leaves(int32_t value) const { return sent_at_[value] != never; }
  /// The record whose result's put sends the value.
  int32_t sent_at(int32_t value) const { return sent_at_[value]; }

  /// Most bytes on their way out when `sent_bytes` have been sent.
  int64_t leaving_bytes(int64_t sent_bytes) const;
  /// Most bytes on their way out and in. `needed_bytes`: values still needed; `ended_bytes`: values
  /// that were needed before they had left, whose memory a copy still reads.
  int64_t moving_bytes(int64_t needed_bytes, int64_t ended_bytes) const;

 private:
  static constexpr int32_t never = -1;

  bool take_room(int64_t bytes);

  const StepGraph& graph_;
  const StepUnits& units_;
  const OffloadTerms& terms_;
  std::vector<int32_t> put_;
  std::vector<int32_t> sent_at_;  // per value
  int64_t away_bytes_ = 0;
  std::vector<int64_t> taken_;  // bytes taken in each place, in its blocks
};

}  // namespace remat::detail
