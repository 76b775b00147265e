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
/// Note [Where the rest is cut]: after a difference from the plan, the rest of a tape gets new
/// cuts. All values that cross such a cut are kept, even if autograd saves none of them, so a bad
/// cut costs memory. Therefore a cut comes where few bytes would cross: live memory made since the
/// difference that is neither saved nor kept. The first cut may let the bytes of a segment cross,
/// plus the bytes copied so far; a later cut, the bytes that its segment has saved. If there is no
/// such position, autograd keeps the rest, or the rest is one segment.
class RestMemory {
 public:
  /// `segment_bytes`: new memory in a segment of the rest (PlannedCuts::rest_bytes). `without_cpu`:
  /// do not count CPU memory. `grows`: segments may grow much larger, and are looked at less often.
  RestMemory(size_t segment_bytes, bool without_cpu, bool grows)
      : segment_bytes_(segment_bytes), without_cpu_(without_cpu), grows_(grows) {}

  /// Notes that an op has allocated `storage` for `value`.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (without_cpu_ && storage.device().is_cpu()) return;
    made_bytes_ += storage.nbytes();
    made_.push_back({value, storage.nbytes(), storage.getWeakStorageImpl()});
  }
  /// Call it while the tape is as planned: forgets the memory made so far.
  void forget_planned() { made_.clear(); }

  /// Notes that the storages which the record has written have new values.
  void wrote(const Tape& tape, const TapeRecord& record) {
    for (const TapeWrite& write : tape.writes(record)) {
      for (Made& made : made_) {
        if (made.value == write.before) made.value = write.after;
      }
    }
  }

  /// Notes that, since the difference, kept memory was copied before a write; autograd copies none.
  void copied(size_t bytes) { copied_bytes_ += bytes; }

  void begin_segment() {
    made_bytes_ = 0;
    next_look_ = segment_bytes_;
  }

  /// Bytes allocated since the last cut of the rest or, without one, since the tape's beginning.
  size_t made_bytes() const { return made_bytes_; }

  /// True if the open segment has allocated enough since the last look for a cut to look again.
  bool is_look_due() const { return made_bytes_ >= next_look_; }

  /// Bytes of live memory that would cross a cut here: all but the values for which is_held() is
  /// true (saved or kept ones). After this call is_look_due() is false for a while.
  size_t bytes_to_cross(c10::function_ref<bool(uint32_t value)> is_held) {
    constexpr size_t kLooks = 8;  // Looks while a segment grows by its usual size.
    next_look_ = made_bytes_ + std::max(segment_bytes_, grows_ ? made_bytes_ : 0) / kLooks;
    std::erase_if(made_,
                  [&](const Made& made) { return made.storage.expired() || is_held(made.value); });
    size_t bytes = 0;
    for (const Made& made : made_) bytes += made.bytes;
    return bytes;
  }

  /// Limit, in bytes, of the values that may cross the first cut.
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
  std::vector<Made> made_;  // May contain freed and held memory.
  size_t made_bytes_ = 0;
  size_t next_look_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace remat
