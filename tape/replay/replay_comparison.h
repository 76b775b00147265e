// SPDX-License-Identifier: BSD-3-Clause

// The ops and named calls of a replay, compared with those of the forward.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/tape/named_call.h>
#include <remat/tape/region.h>

#include "op_writer.h"
#include "replay_memory.h"

namespace remat {

/// Goes through the forward's log as the replay runs.
class ReplayComparison {
 public:
  ReplayComparison(const Region& region, ReplayMemory& memory) : region_(region), memory_(memory) {}
  ReplayComparison(const ReplayComparison&) = delete;
  ReplayComparison& operator=(const ReplayComparison&) = delete;

  /// Empty: for an op or a named call, to be compared next.
  OpWords& words() {
    words_.clear();
    return words_;
  }

  /// Compares what has been written down, on the tensors `seen`, with the forward's next op or
  /// call. `slot`: the slot to be filled next, for messages; `call`: null for an op.
  void compare(c10::ArrayRef<SeenTensor> seen, size_t slot, const NamedCall* call = nullptr);

  /// The op that was compared last has made that.
  void note_made(const c10::IValue& object) { words_.note_made(object); }

  /// How many ops and named calls have been compared.
  size_t count() const { return count_; }
  /// How far that is in the forward's log, in words.
  size_t position() const { return position_; }
  /// True if all ops of the forward have been compared: none follows.
  bool is_past_last_op() const {
    return !region_.ops().broken_off() && position_ == region_.ops().end();
  }

  /// Throws ReplayMismatch: the forward's next call was `expected`, or null.
  [[noreturn]] void call_mismatch(const NamedCall* expected, const NamedCall& got,
                                  size_t slot) const;
  [[noreturn]] void call_missing(const NamedCall& expected, size_t slot) const;

  /// The ops of the forward and those of this replay so far, each with where it comes from; empty
  /// if the region does not write that down.
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
  std::vector<std::string> seen_;  // with where they come from, if the region wants to know
};

}  // namespace remat
