// SPDX-License-Identifier: BSD-3-Clause

// Allocations and registrations of pinned host memory.
#include "pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace cuda_stand_in {

void* PinnedMemory::allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  blocks_[static_cast<char*>(p)] = {bytes, true};
  return p;
}

bool PinnedMemory::release(void* p) {
  const auto it = blocks_.find(static_cast<char*>(p));
  if (it == blocks_.end()) return false;
  const size_t bytes = it->second.bytes;
  if (!erase(p, true)) return false;
  munmap(p, bytes);
  return true;
}

bool PinnedMemory::pin(void* p, size_t bytes) {
  if (contains(p)) return false;
  blocks_[static_cast<char*>(p)] = {bytes, false};
  return true;
}

bool PinnedMemory::unpin(void* p) {
  return erase(p, false);
}

bool PinnedMemory::erase(void* p, bool is_allocation) {
  const auto it = blocks_.find(static_cast<char*>(p));
  if (it == blocks_.end() || it->second.is_allocation != is_allocation) return false;
  blocks_.erase(it);
  return true;
}

bool PinnedMemory::contains(const void* p) const {
  auto it = blocks_.upper_bound(static_cast<const char*>(p));
  if (it == blocks_.begin()) return false;
  --it;
  return static_cast<const char*>(p) < it->first + it->second.bytes;
}

}  // namespace cuda_stand_in
