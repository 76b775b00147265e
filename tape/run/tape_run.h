// SPDX-License-Identifier: BSD-3-Clause

// One replay of a tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/region.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/replayer.h>
#include <remat/tape/tape.h>

namespace remat {

class CutValue;

/// Has a T for each value of a tape, default-constructed at first. A list has the values that one
/// part makes, and a map the other values that the part uses, so a run costs no more than its part.
template <class T>
class ByValue {
 public:
  ByValue(uint32_t first, size_t end) : first_(first), made_(end - first) {}

  T& operator[](uint32_t value) { return is_made(value) ? made_[value - first_] : others_[value]; }
  const T& operator[](uint32_t value) const {
    if (is_made(value)) return made_[value - first_];
    const auto other = others_.find(value);
    return other == others_.end() ? none_ : other->second;
  }

  template <class F>
  void for_each(F&& f) {
    for (size_t i = 0; i < made_.size(); ++i) f(static_cast<uint32_t>(first_ + i), made_[i]);
    for (auto& [value, other] : others_) f(value, other);
  }

 private:
  bool is_made(uint32_t value) const { return value - first_ < made_.size(); }

  uint32_t first_;
  std::vector<T> made_;
  std::unordered_map<uint32_t, T> others_;
  const T none_{};
};

/// Recomputes the values of a region's live slots. Use it on one thread.
class TapeRun {
 public:
  using Inputs = c10::ArrayRef<std::shared_ptr<const CutValue>>;

  /// Replays part `unit` of the tape. `root` is the user's region, which has the logs; `entry` has
  /// its arguments. `region` has the part's slots, and `inputs` are values from other units.
  TapeRun(const Tape& tape, const Region& root, const RegionEntry& entry, const Region& region,
          size_t unit, Inputs inputs);

  /// Fetches the values from outside the part that its records read. May replay outer regions.
  void fetch();

  /// Call both after fetch(). run() runs the records, with no scope open; fill() fills `slots`.
  void run();
  void fill(ReplayedSlots& slots);

 private:
  struct Live {
    at::Tensor tensor;                    // On the value's memory, in any layout.
    bool owned = false;                   // The run may write this memory.
    bool given = false;                   // The value is one of the part's inputs.
    uint32_t written = TapeValue::kNone;  // The memory's value after the running op's write.
  };

  size_t end() const { return std::min<size_t>(part_.end, tape_.records().size()); }
  void mark();
  bool runs(const TapeRecord& record) const;
  at::Tensor fetch_outside(const TapeValue& value) const;
  at::Tensor fetch_product(const TapeValue& value) const;
  at::Tensor fetch(const TapeValue& value) const;
  bool is_made_by_fetch(const TapeValue& value, const at::Tensor& tensor) const;
  at::Tensor make_memory(const TapeValue& value) const;
  void execute(const TapeRecord& record, uint32_t step);
  void prepare_writes(const TapeRecord& record, uint32_t step);
  void push_arguments(const TapeRecord& record);
  void check_not_freed(const TapeRecord& record, const at::Tensor& tensor) const;
  void take_outputs(const TapeRecord& record);
  bool is_new(uint32_t number) const;
  void drop_used(const TapeRecord& record, uint32_t step);
  at::Tensor value_of(const TapeSlot& slot, size_t number) const;
  at::Tensor make_wrapper(const TapeSlot::Special& wrapper, size_t number) const;
  void check_hash(const TapeSlot& slot, size_t number, const at::Tensor& value) const;
  at::Tensor get_after_write(const TapeRef& ref) const;
  at::Tensor get(const TapeRef& ref) const;
  at::Tensor fetch_argument(size_t outside) const;
  [[noreturn]] void fail(const TapeRecord& record, const char* what) const;

  const Tape& tape_;
  const TapePart& part_;
  const Region& root_;
  const Region& region_;
  const RegionEntry& entry_;
  const Inputs given_;
  ByValue<uint32_t> last_use_;  // Step of the last use; 0 if never.
  ByValue<Live> live_;
  std::vector<bool> slot_wanted_;
  torch::jit::Stack stack_;
  torch::jit::Stack written_arguments_;                       // Keeps out= arguments alive.
  std::vector<std::pair<uint32_t, Live>> given_and_written_;  // Inputs that the op makes anew.
};

}  // namespace remat
