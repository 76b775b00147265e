// SPDX-License-Identifier: BSD-3-Clause

// Memory that a tape allocates once it differs from its plan, and how much of it would cross a cut.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/tape/tape.h>

namespace remat {

/// Use it on the forward's thread.
///
/// Note [Where the rest is cut]: after a difference from the plan, the rest of a tape gets new
/// cuts. All values that cross such a cut are kept, even if autograd saves none of them, so a bad
/// cut costs memory. A cut comes where few bytes are alive that were made since the difference and
/// are neither saved nor kept: at the first cut at most the bytes that a segment may allocate plus
/// those copied meanwhile, later at most the bytes that the segment has saved. Without such a
/// position, autograd keeps the rest, or the rest is one segment.
class RestMemory {
 public:
  /// `segment_bytes`: new memory in a segment of the rest (PlannedCuts::rest_bytes). `without_cpu`:
  /// CPU memory does not count. `grows`: segments may be much larger, with fewer looks for a cut.
  RestMemory(size_t segment_bytes, bool without_cpu, bool grows)
      : segment_bytes_(segment_bytes), without_cpu_(without_cpu), grows_(grows) {}

  /// An op has allocated `storage` for `value`.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (without_cpu_ && storage.device().is_cpu()) return;
    made_bytes_ += storage.nbytes();
    made_.push_back({value, storage.nbytes(), storage.getWeakStorageImpl()});
  }
  /// Memory made so far belongs to the plan.
  void forget_planned() { made_.clear(); }

  /// The storages written by the record have new values.
  void wrote(const Tape& tape, const TapeRecord& record) {
    for (const TapeWrite& write : tape.writes(record)) {
      for (Made& made : made_) {
        if (made.value == write.before) made.value = write.after;
      }
    }
  }

  /// Since the difference, kept memory was copied before a write; autograd would copy nothing.
  void copied(size_t bytes) { copied_bytes_ += bytes; }

  void begin_segment() {
    made_bytes_ = 0;
    next_look_ = segment_bytes_;
  }

  /// Bytes allocated since the last cut of the rest; before the first one, in all.
  size_t made_bytes() const { return made_bytes_; }

  /// True if it is time to look for a cut in a segment of the rest. A growing segment is not looked
  /// at after each record.
  bool is_look_due() const { return made_bytes_ >= next_look_; }

  /// Bytes of live memory, without values for which is_held() returns true (saved or kept ones).
  /// After this call is_look_due() is false for a while.
  size_t bytes_to_cross(c10::function_ref<bool(uint32_t value)> is_held) {
    constexpr size_t kLooks = 8;  // Looks while a segment grows by its usual size.
    next_look_ = made_bytes_ + std::max(segment_bytes_, grows_ ? made_bytes_ : 0) / kLooks;
    std::erase_if(made_,
                  [&](const Made& made) { return made.storage.expired() || is_held(made.value); });
    size_t bytes = 0;
    for (const Made& made : made_) bytes += made.bytes;
    return bytes;
  }

  /// Byte limit for values that cross the first cut.
  size_t max_at_first_cut() const { return segment_bytes_ + copied_bytes_; }

 private:
  struct Made {
    uint32_t value;  ///< The storage's newest value.
    size_t bytes;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  const size_t segment_bytes_;
  const bool without_cpu_;
  const bool grows_;
  std::vector<Made> made_;  // Entries may be dead or held.
  size_t made_bytes_ = 0;
  size_t next_look_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace remat
