// SPDX-License-Identifier: BSD-3-Clause

// Host memory as a pool of reusable blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pages.h"
#include "worker.h"

#include <remat/offload/offload_memory.h>

namespace remat::detail {

/// Takes memory from the system through a link and reuses it. Keeps at most twice the bytes that
/// were ever in use at once. Any thread. A forked process reuses nothing, because the mutex may be
/// held by a thread that exists only in the parent.
class HostPool final : public OffloadMemory, public std::enable_shared_from_this<HostPool> {
 public:
  HostPool(int64_t max_bytes, std::shared_ptr<CopyLink> link)
      : max_bytes_(max_bytes), link_(std::move(link)) {}

  /// A block of the pool. Its destructor gives the memory back to the pool.
  class Piece final : public Block {
   public:
    Piece(std::shared_ptr<HostPool> pool, at::Storage storage, c10::DeviceType device)
        : pool_(std::move(pool)), storage_(std::move(storage)), device_(device) {}
    ~Piece() override { pool_->give_back(std::move(storage_), device_); }

    CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
      return pool_->link_->copy_out(storage_, device, after);
    }
    CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
      return pool_->link_->copy_in(device, storage_, after);
    }

    const at::Storage& storage() const { return storage_; }

   private:
    std::shared_ptr<HostPool> pool_;
    at::Storage storage_;
    c10::DeviceType device_;
  };

  /// Takes a block of this many bytes, rounded up to whole pages. If the pool has no limit, the
  /// block may be up to a quarter larger. Null if there is no room.
  std::unique_ptr<Piece> take_piece(int64_t bytes, c10::Device device);

  std::string name() const override { return "host memory"; }
  std::unique_ptr<Block> take(int64_t bytes, c10::Device device) override {
    return take_piece(bytes, device);
  }
  int64_t system_bytes() const override;
  int64_t max_bytes() const override { return max_bytes_; }
  int64_t block_bytes() const override { return kPageBytes; }
  CopyLink& link() override { return *link_; }

 private:
  // Keyed by device type, since memory pinned for one device is not pinned for another.
  using Blocks = std::multimap<std::pair<c10::DeviceType, int64_t>, at::Storage>;

  at::Storage take_block(int64_t size, c10::Device device);
  at::Storage take_free(int64_t size, c10::Device device);
  bool make_room(int64_t size, Blocks& unfit);
  at::Storage allocate(int64_t size, c10::Device device);
  void give_back(at::Storage block, c10::DeviceType device);
  void give_up(int64_t size);

  const int64_t max_bytes_;
  const std::shared_ptr<CopyLink> link_;
  const MadeInProcess process_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;       // bytes taken from the system
  int64_t used_bytes_ = 0;  // bytes of bytes_ that are in use as pieces
  int64_t peak_bytes_ = 0;  // maximum of used_bytes_
  Blocks free_;
};

}  // namespace remat::detail
