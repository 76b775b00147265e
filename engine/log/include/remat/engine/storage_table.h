// SPDX-License-Identifier: BSD-3-Clause

// The storages that a region has met, with their origins.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>

namespace remat {

/// Maps the memory of a tensor, memory_of(), to the tensor's origin. Does not keep the memory
/// alive. Addresses of results are not reused while the table lives, because otherwise a tensor
/// that no op makes (from_numpy) could be mistaken for a freed result.
///
/// Note [A table of one's own]: every op looks up its arguments and enters its results, so a table
/// must not allocate per region or entry. It uses open addressing with linear probing and no
/// removal; the thread keeps the last table's memory for the next region.
class REMAT_API StorageTable {
 public:
  StorageTable();
  StorageTable(const StorageTable&) = delete;
  StorageTable& operator=(const StorageTable&) = delete;
  ~StorageTable();

  /// The origin of `memory`; unknown if it was not entered.
  Origin find(const void* memory) const { return cells_[cell_of(memory)].origin; }

  /// The origin of a tensor that consists of `parts` and that no op has made: the origin of the
  /// first part made in the region; unknown if the region made no part.
  Origin find_made(c10::ArrayRef<at::Tensor> parts) const;

  /// The value of the region's tape that the memory holds now; kNoValue if unknown. The value is
  /// kept apart from the origin, which function replays compare: see Note [Kept logs].
  static constexpr uint32_t kNoValue = ~uint32_t{0};
  uint32_t value(const void* memory) const { return cells_[cell_of(memory)].value; }

  /// Sets the memory's value until the next enter(). Unknown memory counts as made inside.
  void set_value(const void* memory, uint32_t value) {
    Cell& cell = cells_[cell_of(memory)];
    const Origin origin = cell.origin.is_unknown() ? Origin::inside() : cell.origin;
    enter(cell, {memory, origin, value});
  }

  void enter(const void* memory, Origin origin) {
    enter(cells_[cell_of(memory)], {memory, origin});
  }

  /// Enters a tensor subclass that no op has made.
  void enter_wrapper(const at::Tensor& wrapper, Origin origin) {
    enter(memory_of(wrapper), origin);
    hold_address(wrapper);
  }

  /// If `call` writes argument `i`, which has `origin`, the argument is no longer unwritten.
  void note_write(const OpCall& call, size_t i, const at::Tensor& tensor, Origin origin) {
    if (C10_UNLIKELY(origin.is_unwritten()) && call.writes_argument(i))
      cells_[cell_of(memory_of(tensor))].origin = Origin::inside();
  }

  /// Enters a result as made inside, unless the table has the result's memory already: the memory
  /// of a view of a tensor from outside.
  void enter_result(const at::Tensor& tensor) { enter_result(tensor, Origin::inside()); }

  /// Like enter_result(tensor), for a result of the logged op that `made` names. If the op wrote
  /// memory made inside, that memory counts as made by this op from now on.
  void enter_result(const at::Tensor& tensor, Origin made) {
    const void* const memory = memory_of(tensor);
    if (!memory) return;
    Cell& cell = cells_[cell_of(memory)];
    // Views of a cast keep the cast's origin, because forward or replay may get the cast from
    // autocast's cache, where other code has made it.
    if (C10_UNLIKELY(cell.origin.is_cast())) return;
    if (cell.origin.is_made()) {
      if (made.is_made()) cell.origin = made;
      return;
    }
    const bool is_named_now = cell.origin.is_inside() && made.value() != Origin::inside().value();
    if ((!cell.origin.is_unknown() && !is_named_now) || cell.origin.is_given()) return;
    enter(cell, {memory, made, cell.value});
    hold_address(tensor);
  }

  /// Call it when an op gets a storage as an argument: see Origin::given().
  void note_storage(const c10::Storage& storage) {
    const void* const memory = storage.unsafeGetStorageImpl();
    Cell& cell = cells_[cell_of(memory)];
    if (!cell.origin.is_unknown()) return;
    has_given_ = true;
    enter(cell, {memory, Origin::given(), cell.value});
    addresses_.emplace_back(storage.getWeakStorageImpl());
  }

  /// True if note_storage() has entered the memory of `tensor`.
  bool is_given(const at::Tensor& tensor) const {
    return C10_UNLIKELY(has_given_) && find(memory_of(tensor)).is_given();
  }

  /// Prevents reuse of the storage's address while the table lives.
  void hold_address(const at::Tensor& tensor) {
    if (tensor.has_storage()) addresses_.push_back(weak_storage(tensor));
  }

  /// True if `storage`, which is not in the table, overlaps the memory of a result in the table.
  bool has_memory_of(const c10::Storage& storage) const;

 private:
  struct Cell {
    const void* memory = nullptr;
    Origin origin = Origin::unknown();
    uint32_t value = kNoValue;
  };

  /// Index of the memory's cell, or of the free cell where it belongs.
  size_t cell_of(const void* memory) const {
    const size_t mask = cells_.size() - 1;
    size_t i = (reinterpret_cast<uintptr_t>(memory) >> 4U) * 0x9E3779B97F4A7C15ULL >> 20U & mask;
    while (cells_[i].memory && cells_[i].memory != memory) i = (i + 1) & mask;
    return i;
  }

  void enter(Cell& cell, const Cell& entry) {
    const bool is_new = !cell.memory;
    cell = entry;
    if (is_new && ++count_ * 2 > cells_.size()) grow();
  }

  void grow();
  static std::vector<Cell>& spare();  // Spare cells of this thread.

  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> addresses_;
  std::vector<Cell> cells_;  // The size is a power of two; at most half of the cells are used.
  size_t count_ = 0;
  bool has_given_ = false;
};

}  // namespace remat
