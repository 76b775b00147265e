// SPDX-License-Identifier: BSD-3-Clause

// Allocation of a StorageTable's cells, and searches of its results.
#include <remat/engine/storage_table.h>

#include <algorithm>
#include <utility>

#include <remat/engine/storage_bytes.h>

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

bool StorageTable::has_memory_of(const c10::Storage& storage) const {
  return std::any_of(addresses_.begin(), addresses_.end(),
                     [&](const auto& made) { return overlap(storage, c10::Storage(made.lock())); });
}

Origin StorageTable::find_made(c10::ArrayRef<at::Tensor> parts) const {
  for (const at::Tensor& part : parts) {
    const void* const memory = memory_of(part);
    const Origin origin = memory ? find(memory) : Origin::unknown();
    if (origin.is_made()) return origin;
    if (origin.is_inside() || origin.is_product() || origin.is_in_call()) return Origin::inside();
  }
  return Origin::unknown();
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
