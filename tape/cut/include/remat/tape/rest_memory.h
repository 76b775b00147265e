// SPDX-License-Identifier: BSD-3-Clause

// Memory that a tape allocates, and how much of it would cross a cut that no plan has made.
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
/// cut costs memory. Therefore a cut is made only where few bytes of live memory would cross it,
/// not counting memory that is saved or kept. At the first cut, at most `segment_bytes` plus the
/// bytes copied since the difference may cross. At a later cut, no more bytes may cross than the
/// segment before the cut has saved. If no position qualifies for the first cut, autograd keeps
/// everything to the end. If none qualifies for a later cut, the last segment runs to the end.
/// A tape with PlannedCuts::while_recorded has no plan, so all its cuts are made like later ones.
class RestMemory {
 public:
  /// `segment_bytes`: new memory in a segment of the rest (PlannedCuts::rest_bytes). `without_cpu`:
  /// do not count CPU memory. `grows`: PlannedCuts::while_recorded; segments may grow much larger
  /// than `segment_bytes`, and the larger the open one is, the less often a cut is looked for.
  RestMemory(size_t segment_bytes, bool without_cpu, bool grows)
      : segment_bytes_(segment_bytes), without_cpu_(without_cpu), grows_(grows) {}

  /// Notes that an op has allocated `storage` for `value`.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (without_cpu_ && storage.device().is_cpu()) return;
    made_bytes_ += storage.nbytes();
    made_.push_back({value, storage.nbytes(), storage.getWeakStorageImpl()});
  }
  /// Forgets the memory made so far. Call it as long as the tape is as planned.
  void forget_planned() { made_.clear(); }

  /// Notes that the storages which the record has written have new values.
  void wrote(const Tape& tape, const TapeRecord& record) {
    for (const TapeWrite& write : tape.writes(record)) {
      for (Made& made : made_) {
        if (made.value == write.before) made.value = write.after;
      }
    }
  }

  /// Adds bytes that were copied because kept memory was about to be overwritten. Autograd makes no
  /// such copies, so a cut that ends them may cost as many bytes.
  void copied(size_t bytes) { copied_bytes_ += bytes; }

  void begin_segment() {
    made_bytes_ = 0;
    next_look_ = segment_bytes_;
  }

  /// Bytes allocated since the last unplanned cut or, without one, since the tape's beginning.
  size_t made_bytes() const { return made_bytes_; }

  /// True if it is time to look for a cut again, because the open segment has allocated enough
  /// since the last look.
  bool is_look_due() const { return made_bytes_ >= next_look_; }

  /// Bytes of live memory that would cross a cut here, without values for which is_held() is true:
  /// saved and kept ones or, with PlannedCuts::while_recorded, those of other segments, which cross
  /// cuts already. Counts as a look, so is_look_due() is false for a while.
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
  std::vector<Made> made_;  // Some may be freed or held by now.
  size_t made_bytes_ = 0;
  size_t next_look_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace remat
