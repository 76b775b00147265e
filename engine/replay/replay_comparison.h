// SPDX-License-Identifier: BSD-3-Clause

// Comparing the ops and named calls of a replay with those of the forward.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/named_call.h>
#include <remat/engine/region.h>

#include <remat/engine/op_writer.h>
#include "replay_memory.h"

namespace remat {

/// Steps through the forward's log as the replay runs.
class REMAT_API ReplayComparison {
 public:
  ReplayComparison(const Region& region, ReplayMemory& memory) : region_(region), memory_(memory) {}
  ReplayComparison(const ReplayComparison&) = delete;
  ReplayComparison& operator=(const ReplayComparison&) = delete;

  /// Empty words, for the next op or named call to be compared.
  OpWords& words() {
    words_.clear();
    return words_;
  }

  /// Compares words(), filled for an op or call on the tensors `seen`, with the forward's next
  /// entry. `slot` is the next slot to be filled, for messages; `call` is null for an op.
  void compare(c10::ArrayRef<SeenTensor> seen, size_t slot, const NamedCall* call = nullptr);

  /// Notes that the op compared last has made `object`.
  void note_made(const c10::IValue& object) { words_.note_made(object); }

  /// Number of ops and named calls compared so far.
  size_t count() const { return count_; }
  /// Position in the forward's log, in words.
  size_t position() const { return position_; }
  /// True if all ops of the forward have been compared.
  bool is_past_last_op() const {
    return !region_.ops().broken_off() && position_ == region_.ops().end();
  }
  /// True if all but the forward's last op have been compared, and that op is no named call.
  bool is_before_last_op() const {
    const OpLog& ops = region_.ops();
    if (ops.broken_off() || position_ == ops.end()) return false;
    const c10::ArrayRef<uint64_t> next = ops.at(position_);
    return position_ + next.size() == ops.end() && !OpLog::is_call(next);
  }

  /// Call it when the function calls is_recomputing(). What follows is not compared.
  void end() { has_ended_ = true; }
  bool has_ended() const { return has_ended_; }

  /// True if `tensor`, as far as is known, is the one that the forward saved in `slot`.
  bool is_same_part(const Slot& slot, const at::Tensor& tensor) const;

  /// Throws ReplayMismatch. `expected`: the forward's next call; null if the forward made no more.
  [[noreturn]] void call_mismatch(const NamedCall* expected, const NamedCall& got,
                                  size_t slot) const;
  [[noreturn]] void call_missing(const NamedCall& expected, size_t slot) const;

  /// Lists the ops of the forward and of this replay so far, with their sites; empty if the region
  /// does not record sites.
  std::string op_lists() const;

 private:
  const NamedCall* call_at(size_t position) const;
  [[noreturn]] void mismatch(c10::ArrayRef<uint64_t> logged, size_t slot,
                             const NamedCall* call) const;

  const Region& region_;
  ReplayMemory& memory_;
  OpWords words_;
  size_t position_ = 0;
  size_t count_ = 0;
  bool has_ended_ = false;
  std::vector<std::string> seen_;  // Ops with their sites, if the region records sites.
};

}  // namespace remat
