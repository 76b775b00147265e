// SPDX-License-Identifier: BSD-3-Clause

// Blocks on disk, which pass through pieces of host memory.
#include <remat/offload/disk_memory.h>

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "disk_file.h"
#include "host_pool.h"
#include "made_in_process.h"
#include "storage_memory.h"
#include "worker.h"

namespace remat {
namespace detail {
namespace {

using HostPiece = std::shared_ptr<HostPool::Piece>;

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

/// A read from disk into host memory, followed by a copy to the device that is queued when the read
/// is done.
class ReadEvent final : public CopyEvent {
 public:
  struct Copy {
    std::mutex mutex;
    CopyEventPtr event;
    HostPiece from;
  };

  ReadEvent(CopyEventPtr read, std::shared_ptr<Copy> copy)
      : read_(std::move(read)), copy_(std::move(copy)) {}

  bool is_done() override {
    if (process_.is_forked()) return true;  // wait() reports the error.
    if (!read_->is_done()) return false;
    const CopyEventPtr event = copy_event();
    if (event && !event->is_done()) return false;
    release();
    return true;
  }

  void wait() override {
    read_->wait();
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

  CopyEventPtr read_;
  std::shared_ptr<Copy> copy_;
  MadeInProcess process_;
};

/// A copy from the device into host memory, followed by a write to disk.
class WriteEvent final : public CopyEvent {
 public:
  WriteEvent(CopyEventPtr copy, CopyEventPtr write)
      : copy_(std::move(copy)), write_(std::move(write)) {}

  bool is_done() override { return write_->is_done(); }
  void wait() override { write_->wait(); }
  bool may_go(const c10::Storage& storage) override { return copy_->may_go(storage); }

 private:
  CopyEventPtr copy_;
  CopyEventPtr write_;
};

/// Jobs of its threads refer to blocks, which keep it alive until the jobs have ended.
class DiskMemory final : public OffloadMemory, public std::enable_shared_from_this<DiskMemory> {
 public:
  DiskMemory(const DiskMemoryOptions& options, std::shared_ptr<DiskCalls> calls)
      : file_(options.directory, options.max_bytes, std::move(calls)),
        checksums_(options.checksums),
        link_(options.link ? options.link : copy_link()),
        pool_(std::make_shared<HostPool>(std::numeric_limits<int64_t>::max(), link_)) {}

  std::string name() const override { return "disk"; }
  std::unique_ptr<Block> take(int64_t bytes, c10::Device device) override;
  int64_t system_bytes() const override { return file_.size_bytes(); }
  int64_t max_bytes() const override { return file_.max_bytes(); }
  int64_t block_bytes() const override { return kPageBytes; }
  CopyLink& link() override { return *link_; }

 private:
  class DiskBlock;

  DiskFile file_;
  const bool checksums_;
  const std::shared_ptr<CopyLink> link_;
  const std::shared_ptr<HostPool> pool_;
  Worker writer_;
  Worker reader_;
};

class DiskMemory::DiskBlock final : public Block {
 public:
  DiskBlock(std::shared_ptr<DiskMemory> disk, DiskFile::Piece piece)
      : disk_(std::move(disk)), piece_(piece) {}
  ~DiskBlock() override { disk_->file_.give_back(piece_); }

  CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
    const HostPiece host = take_host(device);
    bytes_ = device.nbytes();
    const CopyEventPtr copy = disk_->link_->copy_out(host->storage(), device, after);
    return std::make_shared<WriteEvent>(
        copy, disk_->writer_.run([this, host] { write_from(host->storage().data()); }, copy));
  }

  CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
    const HostPiece host = take_host(device);
    const auto copy = std::make_shared<ReadEvent::Copy>();
    // The caller keeps the storage until all is done; this must not become the last reference.
    c10::StorageImpl* const target = device.unsafeGetStorageImpl();
    const auto work = [this, host, copy, target, after] {
      read_into(host->storage().mutable_data());
      const at::Storage storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(target));
      const std::lock_guard lock(copy->mutex);
      copy->event = disk_->link_->copy_in(storage, host->storage(), after);
      copy->from = host;
    };
    return std::make_shared<ReadEvent>(disk_->reader_.run(work, nullptr), copy);
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
  uint64_t checksum_ = 0;  // checksum of the written bytes; guarded by the order of the events
};

std::unique_ptr<OffloadMemory::Block> DiskMemory::take(int64_t bytes, c10::Device /*device*/) {
  const std::optional<DiskFile::Piece> piece = file_.take(bytes);
  return piece ? std::make_unique<DiskBlock>(shared_from_this(), *piece) : nullptr;
}

}  // namespace

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
