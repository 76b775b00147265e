// SPDX-License-Identifier: BSD-3-Clause

// The table's memory.
#include <remat/tape/storage_table.h>

#include <algorithm>
#include <utility>

namespace remat {
namespace {

constexpr size_t kFirstSize = 128;
constexpr size_t kLargestKept = 4096;

}  // namespace

// See Note [A table of one's own].
StorageTable::StorageTable() : cells_(std::exchange(spare(), {})) {
  if (cells_.empty()) cells_.resize(kFirstSize);
}

StorageTable::~StorageTable() {
  if (cells_.size() > kLargestKept) return;
  std::fill(cells_.begin(), cells_.end(), Cell());
  spare() = std::move(cells_);
}

std::vector<StorageTable::Cell>& StorageTable::spare() {
  thread_local std::vector<Cell> cells;
  return cells;
}

void StorageTable::grow() {
  std::vector<Cell> smaller(cells_.size() * 2);
  cells_.swap(smaller);
  for (const Cell& cell : smaller) {
    if (cell.memory) cells_[cell_of(cell.memory)] = cell;
  }
}

}  // namespace remat
