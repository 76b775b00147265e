// SPDX-License-Identifier: BSD-3-Clause

// An unnamed file, allocated in pieces.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "made_in_process.h"

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

/// Usable in the process that made it. A forked process, which would overwrite the pieces, gets no
/// space and cannot read. Pieces are whole pages; memory to be written or read must be so, too. Any
/// thread.
class REMAT_API DiskFile {
 public:
  /// Throws ValueError if the file cannot be created.
  DiskFile(const std::string& directory, int64_t max_bytes, std::shared_ptr<DiskCalls> calls);
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile();

  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// Allocates this many bytes, rounded up to whole pages; nullopt if there is no space.
  std::optional<Piece> take(int64_t bytes);
  void give_back(const Piece& piece);

  /// Write and read the first `bytes` of the piece. Throw the system's error, or if less was
  /// transferred.
  void write(const Piece& piece, const void* data, int64_t bytes);
  void read(const Piece& piece, void* data, int64_t bytes);

  int64_t size_bytes() const;
  int64_t max_bytes() const { return max_bytes_; }

 private:
  std::string where() const;
  std::optional<Piece> take_free(int64_t size);
  void check_count(ssize_t count, int64_t asked, const char* what) const;

  std::string directory_;
  int64_t max_bytes_;
  std::shared_ptr<DiskCalls> calls_;
  int file_;
  MadeInProcess process_;
  mutable std::mutex mutex_;
  int64_t size_bytes_ = 0;
  std::map<int64_t, int64_t> free_;  // bytes by offset; no two adjacent
};

/// Makes a disk_memory() that reads and writes by these system calls.
REMAT_API std::shared_ptr<OffloadMemory> disk_memory_by(const DiskMemoryOptions& options,
                                                        std::shared_ptr<DiskCalls> calls);

}  // namespace remat::detail
