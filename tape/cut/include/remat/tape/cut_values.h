// SPDX-License-Identifier: BSD-3-Clause

// Values that a forward keeps because they cross a cut, and values that Cuts::keep lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/cuts.h>
#include <remat/engine/export.h>
#include <remat/policy/policy.h>
#include <remat/tape/cut_value.h>
#include <remat/tape/tape.h>

namespace remat {

/// The values that a forward keeps. A value is kept once, for all units that read it.
class REMAT_API CutValues {
 public:
  /// Keeps the memory of `tensor` for `value` in the scopes around the region. If `value` is kept
  /// already, keeps a copy instead, because the memory is about to be written.
  using Keep = std::function<void(CallProduct& value, const at::Tensor& tensor, Policy policy)>;

  explicit CutValues(Keep keep) : keep_(std::move(keep)) {}

  /// Keeps the value for the open unit directly inside the root. False if it was kept before.
  bool keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy);
  /// The kept value; null if nobody keeps it.
  std::shared_ptr<CutValue> find(uint32_t value) const;

  /// Call it before a write to the value's memory. Returns the number of bytes that were copied.
  size_t before_write(uint32_t value, const at::Tensor& tensor);
  /// Notes that an op like t_() has given `tensor` a new version, but has written no data.
  void laid_out_anew(uint32_t value, const at::Tensor& tensor);

  /// Call it when the open unit directly inside the root ends. Holds its values until drop_ended().
  void end_unit() { kept_by_ended_ = std::exchange(kept_, {}); }
  /// Call it when the inputs of all units in the ended unit have been found and hold the values.
  void drop_ended() { kept_by_ended_.clear(); }

  /// Holds a value of the open unit until finish(), for units that may read it later.
  void hold_to_end(uint32_t value) { held_to_end_.push_back(kept_[value]); }
  /// Notes that a value was read after the unit that makes the value had found its inputs.
  void note_late_reader() { has_late_readers_ = true; }
  bool has_late_readers() const { return has_late_readers_; }
  void finish() { held_to_end_.clear(); }

 private:
  using Values = std::unordered_map<uint32_t, std::shared_ptr<CutValue>>;

  const Keep keep_;
  Values kept_;           // For the open unit directly inside the root.
  Values kept_by_ended_;  // For the unit before the open one.
  std::unordered_map<uint32_t, std::weak_ptr<CutValue>> all_;
  std::vector<std::shared_ptr<CutValue>> held_to_end_;
  bool has_late_readers_ = false;
};

/// Finds the values that Cuts::keep lists while the records that make them are recorded.
class REMAT_API ListedValues {
 public:
  /// A listed value that the current record has made.
  struct Made {
    TapeRef ref;
    at::Tensor tensor;
    bool is_outside;
    Policy policy;
  };

  explicit ListedValues(std::optional<std::vector<Cuts::Kept>> listed)
      : listed_(std::move(listed)) {}

  explicit operator bool() const { return listed_.has_value(); }
  /// True if all listed values have been made.
  bool is_done() const { return !listed_ || next_ == listed_->size(); }
  bool contains(uint32_t value) const { return value < is_listed_.size() && is_listed_[value]; }

  /// Notes that record `record` has just made `ref` as its result `result` (see Cuts::Kept).
  void note_made(size_t record, size_t result, const TapeRef& ref, const at::Tensor& tensor,
                 bool is_outside);
  bool has_made() const { return !made_.empty(); }
  c10::SmallVector<Made, 2> take_made() { return std::exchange(made_, {}); }

  /// Throws a ValueError that begins with `where` if the function's records, `records` of them,
  /// have not made all listed values.
  void check_done(const std::string& where, size_t records) const;

 private:
  const std::optional<std::vector<Cuts::Kept>> listed_;
  size_t next_ = 0;
  std::vector<bool> is_listed_;  // By value.
  c10::SmallVector<Made, 2> made_;
};

}  // namespace remat
