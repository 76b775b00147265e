// SPDX-License-Identifier: BSD-3-Clause

// Which kept values leave the device, and when an offload engine sends them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/policy/offload_terms.h>

#include "step_needs.h"

namespace remat::detail {

/// Note [Peaks with OFFLOAD]
/// How fast copies are decides how long a step takes, never what it needs at most: an engine lets
/// max_leaving_bytes be on their way out at once, and fetches prefetch_bytes before they are asked
/// for. So a value that moves counts whole until it is sent, as part of the former from then on, as
/// part of the latter until a replay asks for it, and whole again while somebody has it. It is sent
/// with the first value that is put when the program has let it go; one that no put follows stays.
class OffloadMoves {
 public:
  /// All must outlive this.
  OffloadMoves(const StepGraph& graph, const StepUnits& units, const OffloadTerms& terms)
      : graph_(graph), units_(units), terms_(terms), sent_at_(graph.profile.values.size(), never) {}

  /// Is there anything to gain, if it is kept?
  bool may_move(int32_t value) const;

  /// `flags`: a KeepFlag per value.
  void choose(const std::vector<HeldValue>& kept_at_root, const std::vector<char>& flags);

  /// Given to the engine, ascending by maker; some of them stay.
  const std::vector<int32_t>& put() const { return put_; }
  bool leaves(int32_t value) const { return sent_at_[value] != never; }
  /// With the put of a value that this record makes.
  int32_t sent_at(int32_t value) const { return sent_at_[value]; }

  /// At most on the way out when so many have been sent.
  int64_t leaving_bytes(int64_t sent_bytes) const;
  /// At most on the way out and in, of those that are still needed, and those that were needed
  /// before they had left, whose memory a copy still reads.
  int64_t moving_bytes(int64_t needed_bytes, int64_t ended_bytes) const;

 private:
  static constexpr int32_t never = -1;

  bool take_room(int64_t bytes);

  const StepGraph& graph_;
  const StepUnits& units_;
  const OffloadTerms& terms_;
  std::vector<int32_t> put_;
  std::vector<int32_t> sent_at_;  // Per value
  int64_t away_bytes_ = 0;
  std::vector<int64_t> taken_;  // Of each place, in its blocks
};

}  // namespace remat::detail
