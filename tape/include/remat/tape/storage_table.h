// SPDX-License-Identifier: BSD-3-Clause

// Which storages a region has met, and where they come from.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>

namespace remat {

/// From a storage's address to its origin. Does not keep storages alive: an address that is used
/// again belongs to a storage made since, which is entered anew.
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
  Origin find(const c10::StorageImpl* storage) const { return cells_[cell_of(storage)].origin; }

  void enter(const c10::StorageImpl* storage, Origin origin) {
    Cell& cell = cells_[cell_of(storage)];
    const bool is_new = !cell.storage;
    cell = {storage, origin};
    if (is_new && ++count_ * 2 > cells_.size()) grow();
  }

  /// Enters it as made inside unless it is known: a view of a tensor from outside stays outside.
  void enter_result(const at::Tensor& tensor) {
    const c10::StorageImpl* const storage = storage_of(tensor);
    if (storage && find(storage).is_unknown()) enter(storage, Origin::inside());
  }

 private:
  struct Cell {
    const c10::StorageImpl* storage = nullptr;
    Origin origin = Origin::unknown();
  };

  /// The storage's cell, or the free one where it belongs.
  size_t cell_of(const c10::StorageImpl* storage) const {
    const size_t mask = cells_.size() - 1;
    size_t i = (reinterpret_cast<uintptr_t>(storage) >> 4U) * 0x9E3779B97F4A7C15ULL >> 20U & mask;
    while (cells_[i].storage && cells_[i].storage != storage) i = (i + 1) & mask;
    return i;
  }

  void grow();
  static std::vector<Cell>& spare();  // of this thread

  std::vector<Cell> cells_;  // a power of two of them, at most half of them used
  size_t count_ = 0;
};

}  // namespace remat
