// SPDX-License-Identifier: BSD-3-Clause

#include "disk_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace remat::detail {
namespace {

// Some file systems (tmpfs, overlays) know no files without a name, or no way past their cache.
int open_unnamed(const std::string& directory, int flags) {
  const int file = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string name = directory + "/remat-offload-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC | flags);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

int open_past_cache(const std::string& directory) {
  const int file = open_unnamed(directory, O_DIRECT);
  return file >= 0 || errno != EINVAL ? file : open_unnamed(directory, 0);
}

// "No space left on device"
std::string reason() {
  return std::strerror(errno);
}

}  // namespace

int DiskCalls::allocate(int file, int64_t offset, int64_t bytes) {
  return ::fallocate(file, 0, offset, bytes);
}

ssize_t DiskCalls::write(int file, const void* data, size_t bytes, int64_t offset) {
  return ::pwrite(file, data, bytes, offset);
}

ssize_t DiskCalls::read(int file, void* data, size_t bytes, int64_t offset) {
  return ::pread(file, data, bytes, offset);
}

DiskFile::DiskFile(const std::string& directory, int64_t max_bytes,
                   std::shared_ptr<DiskCalls> calls)
    : directory_(directory),
      max_bytes_(max_bytes),
      calls_(std::move(calls)),
      file_(open_past_cache(directory)) {
  TORCH_CHECK_VALUE(file_ >= 0,
                    "[disk_memory] directory: expected a folder to make a file in, got '",
                    directory, "': ", reason(), ".");
}

DiskFile::~DiskFile() {
  ::close(file_);
}

std::optional<DiskFile::Piece> DiskFile::take(int64_t bytes) {
  const int64_t size = (bytes + kDiskGranule - 1) / kDiskGranule * kDiskGranule;
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound(size);
  if (fit != free_.end() && fit->first - size <= size / 4) {
    const Piece piece{.offset = fit->second, .bytes = fit->first};
    free_.erase(fit);
    return piece;
  }
  if (size > max_bytes_ - size_bytes_) return std::nullopt;
  // Where the file system cannot tell, the write does.
  if (calls_->allocate(file_, size_bytes_, size) != 0 && errno != EOPNOTSUPP) return std::nullopt;
  const Piece piece{.offset = size_bytes_, .bytes = size};
  size_bytes_ += size;
  return piece;
}

void DiskFile::give_back(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  free_.emplace(piece.bytes, piece.offset);
}

// Whole granules: a file past the cache takes no others, and the piece has them.
void DiskFile::write(const Piece& piece, const void* data, int64_t bytes) {
  const int64_t end = (bytes + kDiskGranule - 1) / kDiskGranule * kDiskGranule;
  for (int64_t done = 0; done < end;) {
    const ssize_t count = calls_->write(file_, static_cast<const char*>(data) + done,
                                        static_cast<size_t>(end - done), piece.offset + done);
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(count >= 0, "write to ", where(), ": ", reason());
    // Less than a granule could not be gone on from.
    TORCH_CHECK(count > 0 && count % kDiskGranule == 0, "write to ", where(), ": expected ",
                end - done, " bytes, got ", count);
    done += count;
  }
}

void DiskFile::read(const Piece& piece, void* data, int64_t bytes) {
  const int64_t end = (bytes + kDiskGranule - 1) / kDiskGranule * kDiskGranule;
  for (int64_t done = 0; done < end;) {
    const ssize_t count = calls_->read(file_, static_cast<char*>(data) + done,
                                       static_cast<size_t>(end - done), piece.offset + done);
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(count >= 0, "read from ", where(), ": ", reason());
    TORCH_CHECK(count > 0 && count % kDiskGranule == 0, "read from ", where(), ": expected ",
                end - done, " bytes, got ", count);
    done += count;
  }
}

int64_t DiskFile::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

std::string DiskFile::where() const {
  return "a file in '" + directory_ + "'";
}

}  // namespace remat::detail
