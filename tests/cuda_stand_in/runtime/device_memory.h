// SPDX-License-Identifier: BSD-3-Clause

// The memory of all devices: a file in memory that is mapped twice, once at the addresses that the
// program gets and may not touch, and once where the stand-in reads and writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>

#include "settings.h"

namespace cuda_stand_in {

class DeviceMemory {
 public:
  // Returns null if the device would have more than `capacity_bytes` in use.
  void* allocate(int device, size_t bytes, size_t capacity_bytes);

  // Returns false if no allocation begins at `p`.
  bool release(const void* p);

  // True for every address of device memory, allocated or not. Needs no lock.
  bool contains(const void* p) const;

  // Returns the device of an address for which contains() is true.
  int device_of(const void* p) const;

  // True if all the bytes lie in one allocation.
  bool is_allocated(const void* p, size_t bytes) const;

  // Returns the address where the host may touch the bytes of device memory; returns other
  // addresses unchanged. Needs no lock.
  char* host_address(const void* p) const;

  size_t used_bytes(int device) const { return used_bytes_[device]; }

  // True once a device has had memory.
  bool is_mapped() const { return program_ != nullptr; }

  // For a forked child: every later access to the parent's device memory is a segmentation fault.
  void leave_to_parent();

 private:
  void map();
  size_t offset_of(const void* p) const { return static_cast<const char*>(p) - program_; }
  size_t find_gap(int device, size_t bytes) const;

  std::atomic<char*> program_ = nullptr;  // addresses that the program gets
  char* host_ = nullptr;                  // addresses of the same bytes for the stand-in
  std::map<size_t, size_t> bytes_;        // size of each allocation, by its offset
  size_t used_bytes_[kMaxDevices] = {};
};

}  // namespace cuda_stand_in
