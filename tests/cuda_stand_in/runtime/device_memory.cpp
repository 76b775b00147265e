// SPDX-License-Identifier: BSD-3-Clause

// Device memory: mapping, allocation by first fit, and the checks of an access.
#include "device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace cuda_stand_in {
namespace {

constexpr size_t kSpan = size_t{1} << 38;  // addresses of one device
constexpr size_t kArena = kSpan * kMaxDevices;
constexpr size_t kGranule = size_t{2} << 20;

size_t rounded(size_t bytes) {
  return std::max<size_t>((bytes + kGranule - 1) / kGranule, 1) * kGranule;
}

char* map_file(int file, int protection) {
  void* const p = mmap(nullptr, kArena, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (p == MAP_FAILED) {
    std::perror("[cuda stand-in] no address space for device memory");
    std::abort();
  }
  madvise(p, kArena, MADV_DONTDUMP);
  return static_cast<char*>(p);
}

}  // namespace

void DeviceMemory::map() {
  const int file = memfd_create("cuda_stand_in", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kArena)) != 0) {
    std::perror("[cuda stand-in] no file for device memory");
    std::abort();
  }
  host_ = map_file(file, PROT_READ | PROT_WRITE);
  program_ = map_file(file, PROT_NONE);
  close(file);
}

// Allocations are a granule apart, so that a kernel that runs past its memory reaches memory that
// is not allocated.
size_t DeviceMemory::find_gap(int device, size_t bytes) const {
  size_t begin = kSpan * device;
  const size_t end = begin + kSpan;
  for (auto it = bytes_.lower_bound(begin); it != bytes_.end() && it->first < end; ++it) {
    if (it->first - begin >= bytes + kGranule) return begin;
    begin = it->first + rounded(it->second) + kGranule;
  }
  return begin + bytes <= end ? begin : kArena;
}

void* DeviceMemory::allocate(int device, size_t bytes, size_t capacity_bytes) {
  if (bytes > capacity_bytes || used_bytes_[device] + rounded(bytes) > capacity_bytes)
    return nullptr;
  if (!is_mapped()) map();
  const size_t offset = find_gap(device, rounded(bytes));
  if (offset == kArena) return nullptr;
  bytes_[offset] = bytes;
  used_bytes_[device] += rounded(bytes);
  return program_ + offset;
}

bool DeviceMemory::release(const void* p) {
  const auto it = contains(p) ? bytes_.find(offset_of(p)) : bytes_.end();
  if (it == bytes_.end()) return false;
  used_bytes_[device_of(p)] -= rounded(it->second);
  madvise(host_ + it->first, rounded(it->second), MADV_REMOVE);
  bytes_.erase(it);
  return true;
}

bool DeviceMemory::contains(const void* p) const {
  const char* const begin = program_;
  return begin && p >= begin && p < begin + kArena;
}

int DeviceMemory::device_of(const void* p) const {
  return static_cast<int>(offset_of(p) / kSpan);
}

bool DeviceMemory::is_allocated(const void* p, size_t bytes) const {
  if (!contains(p)) return false;
  const size_t offset = offset_of(p);
  auto it = bytes_.upper_bound(offset);
  if (it == bytes_.begin()) return false;
  --it;
  return offset + bytes <= it->first + it->second;
}

char* DeviceMemory::host_address(const void* p) const {
  if (!contains(p)) return static_cast<char*>(const_cast<void*>(p));
  return host_ + offset_of(p);
}

void DeviceMemory::leave_to_parent() {
  for (char* const begin : {program_.load(), host_})
    mmap(begin, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace cuda_stand_in
