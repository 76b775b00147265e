// SPDX-License-Identifier: BSD-3-Clause

// The system calls of a memory on disk, for tests to replace.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/offload/disk_memory.h>
#include <remat/offload/offload_memory.h>

namespace remat::detail {

/// The system calls of a file; they return -1 and set errno on failure. Tests replace them.
class REMAT_API DiskCalls {
 public:
  DiskCalls() = default;
  DiskCalls(const DiskCalls&) = delete;
  DiskCalls& operator=(const DiskCalls&) = delete;
  virtual ~DiskCalls() = default;

  /// Reserves disk space for these bytes of the file.
  virtual int allocate(int file, int64_t offset, int64_t bytes);
  virtual ssize_t write(int file, const void* data, size_t bytes, int64_t offset);
  virtual ssize_t read(int file, void* data, size_t bytes, int64_t offset);
};

/// Makes a disk_memory() that reads and writes through `calls`.
REMAT_API std::shared_ptr<OffloadMemory> disk_memory_by(const DiskMemoryOptions& options,
                                                        std::shared_ptr<DiskCalls> calls);

}  // namespace remat::detail
