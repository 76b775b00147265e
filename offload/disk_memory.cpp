// SPDX-License-Identifier: BSD-3-Clause

// Blocks in an unnamed file. Bytes pass through host memory on the way between device and disk.
#include <remat/offload/disk_memory.h>

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "disk_file.h"
#include "host_pool.h"
#include "pages.h"
#include "worker.h"

namespace remat {
namespace detail {
namespace {

using HostPiece = std::shared_ptr<HostPool::Piece>;

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

// The text of errno, such as "No space left on device".
std::string reason() {
  return std::strerror(errno);
}

uint64_t checksum(const void* data, size_t bytes) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  const auto* const begin = static_cast<const char*>(data);
  const size_t tail = bytes % sizeof(uint64_t);
  uint64_t sum = bytes;
  uint64_t word = 0;
  for (size_t at = 0; at < bytes - tail; at += sizeof word) {
    std::memcpy(&word, begin + at, sizeof word);
    sum = (sum ^ word) * kPrime;
    sum ^= sum >> 29;
  }
  word = 0;
  std::memcpy(&word, begin + bytes - tail, tail);
  return (sum ^ word) * kPrime;
}

/// Done when both the disk's work and the copy between host memory and device are done. For a write
/// the copy comes first; for a read it is queued when the disk's work is done.
class DiskEvent final : public CopyEvent {
 public:
  struct Copy {
    std::mutex mutex;
    CopyEventPtr event;
    HostPiece from;  ///< For a read: host memory to keep until the copy is done
  };

  DiskEvent(CopyEventPtr work, std::shared_ptr<Copy> copy)
      : work_(std::move(work)), copy_(std::move(copy)) {}

  bool is_done() override {
    if (process_.is_forked()) return true;  // wait() reports the error.
    if (!work_->is_done()) return false;
    const CopyEventPtr event = copy_event();
    if (event && !event->is_done()) return false;
    release();
    return true;
  }

  void wait() override {
    work_->wait();
    if (const CopyEventPtr event = copy_event()) event->wait();
    release();
  }

  bool may_go(const c10::Storage& storage) override {
    const CopyEventPtr event = copy_event();
    return event && event->may_go(storage);
  }

 private:
  CopyEventPtr copy_event() const {
    const std::lock_guard lock(copy_->mutex);
    return copy_->event;
  }

  void release() {
    HostPiece from;
    const std::lock_guard lock(copy_->mutex);
    from.swap(copy_->from);
  }

  CopyEventPtr work_;
  std::shared_ptr<Copy> copy_;
  MadeInProcess process_;
};

/// A file and its free space. A forked process cannot read, and gets no space, because it would
/// overwrite pieces of its parent. Pieces are whole pages; memory to write from or read into must
/// be whole pages too. Any thread.
class DiskFile {
 public:
  /// Throws ValueError if the file cannot be created.
  DiskFile(const std::string& directory, int64_t max_bytes, std::shared_ptr<DiskCalls> calls)
      : directory_(directory),
        max_bytes_(max_bytes),
        calls_(std::move(calls)),
        file_(open_past_cache(directory)) {
    TORCH_CHECK_VALUE(file_ >= 0,
                      "[disk_memory] directory: expected a folder to make a file in, got '",
                      directory, "': ", reason(), ".");
  }
  ~DiskFile() { ::close(file_); }

  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  /// Allocates this many bytes, rounded up to whole pages; nullopt if there is no space.
  std::optional<Piece> take(int64_t bytes) {
    const int64_t size = whole_pages(bytes);
    if (process_.is_forked()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (const std::optional<Piece> piece = take_free(size)) return piece;
    if (size > max_bytes_ - size_bytes_) return std::nullopt;
    // If the file system cannot reserve space, the write notices a full disk.
    if (calls_->allocate(file_, size_bytes_, size) != 0 && errno != EOPNOTSUPP) return std::nullopt;
    const Piece piece{.offset = size_bytes_, .bytes = size};
    size_bytes_ += size;
    return piece;
  }

  // Makes the piece a hole in free_, and merges it with adjacent holes.
  void give_back(const Piece& piece) {
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

  /// write() and read() transfer the first `bytes` of the piece, rounded up to whole pages as
  /// O_DIRECT requires. They throw the system's error, or an error if less was transferred.
  void write(const Piece& piece, const void* data, int64_t bytes) {
    const int64_t end = whole_pages(bytes);
    for (int64_t done = 0; done < end;) {
      const ssize_t count = calls_->write(file_, static_cast<const char*>(data) + done,
                                          static_cast<size_t>(end - done), piece.offset + done);
      if (count < 0 && errno == EINTR) continue;
      check_count(count, end - done, "write to ");
      done += count;
    }
  }

  void read(const Piece& piece, void* data, int64_t bytes) {
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

  int64_t size_bytes() const {
    if (process_.is_forked()) return 0;
    const std::lock_guard lock(mutex_);
    return size_bytes_;
  }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  std::string where() const { return "a file in '" + directory_ + "'"; }

  // Takes the smallest hole that is large enough.
  std::optional<Piece> take_free(int64_t size) {
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

  // Throws if the call failed, moved nothing, or ended inside a page, from where no other call can
  // go on.
  void check_count(ssize_t count, int64_t asked, const char* what) const {
    TORCH_CHECK(count >= 0, what, where(), ": ", reason());
    TORCH_CHECK(count > 0 && count % kPageBytes == 0, what, where(), ": expected ", asked,
                " bytes, got ", count);
  }

  std::string directory_;
  int64_t max_bytes_;
  std::shared_ptr<DiskCalls> calls_;
  int file_;
  MadeInProcess process_;
  mutable std::mutex mutex_;
  int64_t size_bytes_ = 0;
  std::map<int64_t, int64_t> free_;  // holes: bytes by offset; no two holes are adjacent
};

/// Two worker threads read and write the blocks. Each block keeps the DiskMemory alive.
class DiskMemory final : public OffloadMemory, public std::enable_shared_from_this<DiskMemory> {
 public:
  DiskMemory(const DiskMemoryOptions& options, std::shared_ptr<DiskCalls> calls)
      : file_(options.directory, options.max_bytes, std::move(calls)),
        checksums_(options.checksums),
        link_(options.link ? options.link : copy_link()),
        pool_(std::make_shared<HostPool>(std::numeric_limits<int64_t>::max(), link_)) {}

  std::string name() const override { return "disk"; }
  std::unique_ptr<Block> take(int64_t bytes, c10::Device /*device*/) override {
    const std::optional<DiskFile::Piece> piece = file_.take(bytes);
    return piece ? std::make_unique<DiskBlock>(shared_from_this(), *piece) : nullptr;
  }
  int64_t system_bytes() const override { return file_.size_bytes(); }
  int64_t max_bytes() const override { return file_.max_bytes(); }
  int64_t block_bytes() const override { return kPageBytes; }
  CopyLink& link() override { return *link_; }

 private:
  class DiskBlock final : public Block {
   public:
    DiskBlock(std::shared_ptr<DiskMemory> disk, DiskFile::Piece piece)
        : disk_(std::move(disk)), piece_(piece) {}
    ~DiskBlock() override { disk_->file_.give_back(piece_); }

    CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
      const HostPiece host = take_host(device);
      bytes_ = device.nbytes();
      const auto copy = std::make_shared<DiskEvent::Copy>();
      copy->event = disk_->link_->copy_out(host->storage(), device, after);
      const auto work = [this, host] { write_from(host->storage().data()); };
      return std::make_shared<DiskEvent>(disk_->writer_.run(work, copy->event), copy);
    }

    CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
      const HostPiece host = take_host(device);
      const auto copy = std::make_shared<DiskEvent::Copy>();
      // A raw pointer, because a reference might be the last one and free device memory on the
      // reader's thread. The caller keeps `device` alive until the event is done.
      c10::StorageImpl* const target = device.unsafeGetStorageImpl();
      const auto work = [this, host, copy, target, after] {
        read_into(host->storage().mutable_data());
        const at::Storage storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(target));
        const std::lock_guard lock(copy->mutex);
        copy->event = disk_->link_->copy_in(storage, host->storage(), after);
        copy->from = host;
      };
      return std::make_shared<DiskEvent>(disk_->reader_.run(work, nullptr), copy);
    }

   private:
    HostPiece take_host(const at::Storage& device) const {
      HostPiece host =
          disk_->pool_->take_piece(static_cast<int64_t>(device.nbytes()), device.device());
      TORCH_CHECK_WITH(OutOfMemoryError, host, "no host memory for ", device.nbytes(),
                       " bytes on their way to or from disk");
      return host;
    }

    void write_from(const void* host) {
      if (disk_->checksums_) checksum_ = checksum(host, bytes_);
      disk_->file_.write(piece_, host, static_cast<int64_t>(bytes_));
    }

    void read_into(void* host) const {
      disk_->file_.read(piece_, host, static_cast<int64_t>(bytes_));
      TORCH_CHECK(!disk_->checksums_ || checksum(host, bytes_) == checksum_,
                  "read from a file: expected the bytes that were written, got others");
    }

    std::shared_ptr<DiskMemory> disk_;
    DiskFile::Piece piece_;
    size_t bytes_ = 0;
    uint64_t checksum_ = 0;  // of the written bytes; needs no lock, because reads follow the write
  };

  DiskFile file_;
  const bool checksums_;
  const std::shared_ptr<CopyLink> link_;
  const std::shared_ptr<HostPool> pool_;
  Worker writer_;
  Worker reader_;
};

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

std::shared_ptr<OffloadMemory> disk_memory_by(const DiskMemoryOptions& options,
                                              std::shared_ptr<DiskCalls> calls) {
  TORCH_CHECK_VALUE(options.max_bytes >= 0, "[disk_memory] max_bytes: expected 0 or more, got ",
                    options.max_bytes, ".");
  return std::make_shared<DiskMemory>(options, std::move(calls));
}

}  // namespace detail

std::shared_ptr<OffloadMemory> disk_memory(const DiskMemoryOptions& options) {
  return detail::disk_memory_by(options, std::make_shared<detail::DiskCalls>());
}

}  // namespace remat
