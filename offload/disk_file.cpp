// SPDX-License-Identifier: BSD-3-Clause

#include "disk_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "storage_memory.h"

namespace remat::detail {
namespace {

// Some file systems (tmpfs, overlays) do not support unnamed files or O_DIRECT.
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

// For example "No space left on device".
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
  const int64_t size = whole_pages(bytes);
  if (process_.is_forked()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (const std::optional<Piece> piece = take_free(size)) return piece;
  if (size > max_bytes_ - size_bytes_) return std::nullopt;
  // If the file system cannot tell, the write does.
  if (calls_->allocate(file_, size_bytes_, size) != 0 && errno != EOPNOTSUPP) return std::nullopt;
  const Piece piece{.offset = size_bytes_, .bytes = size};
  size_bytes_ += size;
  return piece;
}

// Takes the smallest hole that is large enough.
std::optional<DiskFile::Piece> DiskFile::take_free(int64_t size) {
  auto best = free_.end();
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    if (hole->second >= size && (best == free_.end() || hole->second < best->second)) best = hole;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, bytes] = *best;
  free_.erase(best);
  if (bytes > size) free_.emplace(offset + size, bytes - size);
  return Piece{.offset = offset, .bytes = size};
}

// Merges adjacent holes.
void DiskFile::give_back(const Piece& piece) {
  if (process_.is_forked()) return;
  const std::lock_guard lock(mutex_);
  const auto hole = free_.emplace(piece.offset, piece.bytes).first;
  const auto next = std::next(hole);
  if (next != free_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole == free_.begin()) return;
  const auto before = std::prev(hole);
  if (before->first + before->second != hole->first) return;
  before->second += hole->second;
  free_.erase(hole);
}

// Writes whole pages, as O_DIRECT requires; the piece has them.
void DiskFile::write(const Piece& piece, const void* data, int64_t bytes) {
  const int64_t end = whole_pages(bytes);
  for (int64_t done = 0; done < end;) {
    const ssize_t count = calls_->write(file_, static_cast<const char*>(data) + done,
                                        static_cast<size_t>(end - done), piece.offset + done);
    if (count < 0 && errno == EINTR) continue;
    check_count(count, end - done, "write to ");
    done += count;
  }
}

void DiskFile::read(const Piece& piece, void* data, int64_t bytes) {
  TORCH_CHECK(!process_.is_forked(), "read from ", where(),
              ": expected the process that has written it, got a forked one");
  const int64_t end = whole_pages(bytes);
  for (int64_t done = 0; done < end;) {
    const ssize_t count = calls_->read(file_, static_cast<char*>(data) + done,
                                       static_cast<size_t>(end - done), piece.offset + done);
    if (count < 0 && errno == EINTR) continue;
    check_count(count, end - done, "read from ");
    done += count;
  }
}

// A transfer that ends inside a page cannot be continued.
void DiskFile::check_count(ssize_t count, int64_t asked, const char* what) const {
  TORCH_CHECK(count >= 0, what, where(), ": ", reason());
  TORCH_CHECK(count > 0 && count % kPageBytes == 0, what, where(), ": expected ", asked,
              " bytes, got ", count);
}

int64_t DiskFile::size_bytes() const {
  if (process_.is_forked()) return 0;
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

std::string DiskFile::where() const {
  return "a file in '" + directory_ + "'";
}

}  // namespace remat::detail
