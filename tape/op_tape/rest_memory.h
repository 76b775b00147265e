// SPDX-License-Identifier: BSD-3-Clause

// What a tape makes once it differs from its plan, and what of it would cross a cut.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/tape/tape.h>

namespace remat {

/// On the forward's thread.
///
/// Note [Where the rest is cut]: what crosses such a cut is kept, also if autograd saves none of
/// it: large tensors would then take more than they do without remat. So a cut comes where little
/// is alive of what was made since the difference and is neither saved nor kept: for the first one
/// no more than a segment may make and what was copied meanwhile, later no more than the segment
/// has saved. Where there is no such place the rest is kept as autograd does, or is one segment.
class RestMemory {
 public:
  /// `segment_bytes`: of new memory in a segment of the rest (Cuts::rest_bytes).
  /// `without_cpu`: memory of the CPU does not count.
  RestMemory(size_t segment_bytes, bool without_cpu)
      : segment_bytes_(segment_bytes), without_cpu_(without_cpu) {}

  /// An op has allocated it, for the value.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (without_cpu_ && storage.device().is_cpu()) return;
    made_bytes_ += storage.nbytes();
    made_.push_back({value, storage.nbytes(), storage.getWeakStorageImpl()});
  }
  /// All that was made so far is the plan's.
  void forget_planned() { made_.clear(); }

  /// The record has given other values to what it has written.
  void wrote(const Tape& tape, const TapeRecord& record);

  /// What differs was copied before it was written; autograd copies nothing.
  void copied(size_t bytes) { copied_bytes_ += bytes; }

  void begin_segment() {
    made_bytes_ = 0;
    next_look_ = segment_bytes_;
  }

  /// Since the last cut of the rest; before the first one, in all.
  size_t made_bytes() const { return made_bytes_; }

  /// True if it is time to look for a place for a cut in a segment of the rest. One that grows is
  /// not looked at after each record.
  bool is_look_due() const { return made_bytes_ >= next_look_; }

  /// Bytes of what is alive, unless `is_held(value)`: it is saved or kept. A look: is_look_due() is
  /// false for a while.
  size_t bytes_to_cross(c10::function_ref<bool(uint32_t value)> is_held);

  /// That may cross the first cut.
  size_t most_at_first() const { return segment_bytes_ + copied_bytes_; }

 private:
  struct Made {
    uint32_t value;  ///< The newest of the storage
    size_t bytes;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  const size_t segment_bytes_;
  const bool without_cpu_;
  std::vector<Made> made_;  // perhaps alive and not held
  size_t made_bytes_ = 0;
  size_t next_look_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace remat
