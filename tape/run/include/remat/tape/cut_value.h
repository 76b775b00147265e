// SPDX-License-Identifier: BSD-3-Clause

// A value that crosses the cuts of a tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <remat/engine/call_log.h>
#include <remat/engine/region.h>

namespace remat {

/// A value that one unit of a cut tape makes and others read, or that a rule has saved. The units
/// that read the value share it, and the last unit to give it up frees it.
class CutValue {
 public:
  /// A value that the forward keeps.
  CutValue(uint32_t value, CallProduct kept) : value_(value), kept_(std::move(kept)) {}

  /// A value that replays of `group` recompute, in `slot`. `groups_around`: number of groups around
  /// `group`.
  CutValue(uint32_t value, std::shared_ptr<Region> group, Slot& slot, size_t groups_around)
      : value_(value), group_(std::move(group)), slot_(&slot), groups_around_(groups_around) {}

  CutValue(const CutValue&) = delete;
  CutValue& operator=(const CutValue&) = delete;
  ~CutValue() {
    if (slot_) group_->release(*slot_);
  }

  uint32_t value() const { return value_; }

  /// Number of groups around the group that makes the value; the largest size_t for a value that
  /// the forward keeps. A replay fetches values in ascending order of this number.
  size_t groups_around() const { return groups_around_; }

  /// The kept value; null if a group makes the value.
  CallProduct* kept() { return kept_ ? &*kept_ : nullptr; }
  const CallProduct* kept() const { return kept_ ? &*kept_ : nullptr; }

  /// Returns a tensor on the value's memory, which the caller must not write. May replay groups and
  /// outer regions. `reader` is the label of the unit that reads, for errors.
  at::Tensor fetch(const std::string& reader) const {
    if (slot_) return group_->load(*slot_);
    return kept_->unpack_to_read(kept_->held(), [&] {
      return c10::str("[replay] ", reader, ", %", value_, ", made before the cut");
    });
  }

 private:
  uint32_t value_;
  std::optional<CallProduct> kept_;
  std::shared_ptr<Region> group_;
  Slot* slot_ = nullptr;
  size_t groups_around_ = ~size_t{0};
};

}  // namespace remat
