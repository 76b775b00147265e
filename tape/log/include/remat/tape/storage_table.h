// SPDX-License-Identifier: BSD-3-Clause

// Which storages a region has met, and where they come from.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>

namespace remat {

/// From memory_of() a tensor to its origin. Does not keep the memory alive. The addresses of
/// results are not used again while the table lives: a tensor that no op makes (from_numpy) must
/// not be taken for one that is gone.
///
/// Note [A table of one's own]: every op looks its arguments up and enters its results, so a table
/// must be at hand without an allocation per region or entry. Open addressing, linear probing, no
/// removal; the thread keeps the memory of the last table for the next region.
class REMAT_API StorageTable {
 public:
  StorageTable();
  StorageTable(const StorageTable&) = delete;
  StorageTable& operator=(const StorageTable&) = delete;
  ~StorageTable();

  /// kUnknown if it was not entered.
  Origin find(const void* memory) const { return cells_[cell_of(memory)].origin; }

  /// Where a tensor comes from that consists of `parts` and that no op has made: from where the
  /// first of them does that the region has made; kUnknown if it has made none.
  Origin find_made(c10::ArrayRef<at::Tensor> parts) const;

  /// The value of the region's tape that the memory has now; kNoValue if that is not known. It is
  /// no part of the origin, which a replay of the function compares: see Note [Kept logs].
  static constexpr uint32_t kNoValue = ~uint32_t{0};
  uint32_t value(const void* memory) const { return cells_[cell_of(memory)].value; }

  /// Gives memory a value until it is entered anew. Memory that is not known was made inside.
  void set_value(const void* memory, uint32_t value) {
    Cell& cell = cells_[cell_of(memory)];
    const Origin origin = cell.origin.is_unknown() ? Origin::inside() : cell.origin;
    enter(cell, {memory, origin, value});
  }

  void enter(const void* memory, Origin origin) {
    enter(cells_[cell_of(memory)], {memory, origin});
  }

  /// A tensor of a Python class, which no op has made.
  void enter_wrapper(const at::Tensor& wrapper, Origin origin) {
    enter(memory_of(wrapper), origin);
    hold_address(wrapper);
  }

  /// Argument `i` of a call, which has that origin: it has been written if the call does so.
  void note_write(const OpCall& call, size_t i, const at::Tensor& tensor, Origin origin) {
    if (C10_UNLIKELY(origin.is_unwritten()) && call.writes_argument(i))
      cells_[cell_of(memory_of(tensor))].origin = Origin::inside();
  }

  /// Enters it as made inside unless it is known: a view of a tensor from outside stays outside.
  void enter_result(const at::Tensor& tensor) { enter_result(tensor, Origin::inside()); }

  /// The same of a result of an op that is written down. What it wrote inside is its own from now
  /// on.
  void enter_result(const at::Tensor& tensor, Origin made) {
    const void* const memory = memory_of(tensor);
    if (!memory) return;
    Cell& cell = cells_[cell_of(memory)];
    // Views of a cast: autocast may have it from outside, in the forward or in the replay.
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

  /// An op is given a storage: see Origin::given().
  void note_storage(const c10::Storage& storage) {
    const void* const memory = storage.unsafeGetStorageImpl();
    Cell& cell = cells_[cell_of(memory)];
    if (!cell.origin.is_unknown()) return;
    has_given_ = true;
    enter(cell, {memory, Origin::given(), cell.value});
    addresses_.emplace_back(storage.getWeakStorageImpl());
  }

  /// True if its memory is one that note_storage() has entered.
  bool is_given(const at::Tensor& tensor) const {
    return C10_UNLIKELY(has_given_) && find(memory_of(tensor)).is_given();
  }

  /// The address of its storage is not used again while the table lives.
  void hold_address(const at::Tensor& tensor) {
    if (tensor.has_storage()) addresses_.push_back(weak_storage(tensor));
  }

  /// True if `storage`, which is not entered as a result, has memory of one that is.
  bool has_memory_of(const c10::Storage& storage) const;

 private:
  struct Cell {
    const void* memory = nullptr;
    Origin origin = Origin::unknown();
    uint32_t value = kNoValue;
  };

  /// The storage's cell, or the free one where it belongs.
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
  static std::vector<Cell>& spare();  // of this thread

  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> addresses_;
  std::vector<Cell> cells_;  // a power of two of them, at most half of them used
  size_t count_ = 0;
  bool has_given_ = false;
};

}  // namespace remat
