// SPDX-License-Identifier: BSD-3-Clause

// A file without a name, in pieces.
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

#include <remat/tape/export.h>

namespace remat::detail {

/// What a file asks of the system; -1 with errno, as the calls of the system. Tests have others.
class REMAT_API DiskCalls {
 public:
  DiskCalls() = default;
  DiskCalls(const DiskCalls&) = delete;
  DiskCalls& operator=(const DiskCalls&) = delete;
  virtual ~DiskCalls() = default;

  /// Makes sure that the disk has room for these bytes of the file.
  virtual int allocate(int file, int64_t offset, int64_t bytes);
  virtual ssize_t write(int file, const void* data, size_t bytes, int64_t offset);
  virtual ssize_t read(int file, void* data, size_t bytes, int64_t offset);
};

/// Of the process that made it: a forked one, which would write over its pieces, has no room here
/// and can read nothing. Pieces are whole pages, and so must the memory be that is written and
/// read. On any thread.
class REMAT_API DiskFile {
 public:
  /// Throws ValueError.
  DiskFile(const std::string& directory, int64_t max_bytes, std::shared_ptr<DiskCalls> calls);
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile();

  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// Of that many bytes, in whole pages; unset: there is no room.
  std::optional<Piece> take(int64_t bytes);
  void give_back(const Piece& piece);

  /// All of the first `bytes` of the piece. Throw what the system says, or that it did less.
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
  std::map<int64_t, int64_t> free_;  // Bytes by offset; no two touch
};

}  // namespace remat::detail
