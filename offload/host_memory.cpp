// SPDX-License-Identifier: BSD-3-Clause

// Blocks of host memory, used again.
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <new>
#include <utility>

#include <remat/offload/offload_memory.h>

namespace remat {
namespace {

constexpr int64_t kGranule = 4096;

/// What was taken from the system and is free. A block fits if it is at most a quarter larger.
class HostPool {
 public:
  explicit HostPool(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// An empty one: there is no room.
  at::Storage take(int64_t bytes, c10::Device device, CopyLink& link) {
    const int64_t size = (bytes + kGranule - 1) / kGranule * kGranule;
    Blocks unfit;  // freed after the lock
    {
      const std::lock_guard lock(mutex_);
      const auto fit = free_.lower_bound({device.type(), size});
      if (fit != free_.end() && fit->first.first == device.type() &&
          fit->first.second - size <= size / 4) {
        at::Storage block = std::move(fit->second);
        free_.erase(fit);
        return block;
      }
      make_room(size, unfit);
      if (size > max_bytes_ - bytes_) return {};
      bytes_ += size;
    }
    unfit.clear();
    try {
      return link.allocate_host(size, device);
    } catch (const std::bad_alloc&) {
      give_up(size);
    } catch (const c10::OutOfMemoryError&) {
      give_up(size);
    } catch (...) {
      give_up(size);
      throw;
    }
    return {};
  }

  void give_back(at::Storage block, c10::DeviceType device) {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<int64_t>(block.nbytes());
    free_.emplace(std::make_pair(device, size), std::move(block));
  }

  int64_t system_bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  // What is pinned for one device is not for another.
  using Blocks = std::multimap<std::pair<c10::DeviceType, int64_t>, at::Storage>;

  /// Of no use at their size: the system gets them back.
  void make_room(int64_t size, Blocks& unfit) {
    while (size > max_bytes_ - bytes_ && !free_.empty()) {
      bytes_ -= free_.begin()->first.second;
      unfit.insert(free_.extract(free_.begin()));
    }
  }

  void give_up(int64_t size) {
    const std::lock_guard lock(mutex_);
    bytes_ -= size;
  }

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;
  Blocks free_;
};

class HostBlock final : public OffloadMemory::Block {
 public:
  HostBlock(std::shared_ptr<HostPool> pool, std::shared_ptr<CopyLink> link, at::Storage block,
            c10::DeviceType device)
      : pool_(std::move(pool)), link_(std::move(link)), block_(std::move(block)), device_(device) {}
  ~HostBlock() override { pool_->give_back(std::move(block_), device_); }

  CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
    return link_->copy_out(block_, device, after);
  }
  CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
    return link_->copy_in(device, block_, after);
  }

 private:
  std::shared_ptr<HostPool> pool_;
  std::shared_ptr<CopyLink> link_;
  at::Storage block_;
  c10::DeviceType device_;
};

class HostMemory final : public OffloadMemory {
 public:
  HostMemory(int64_t max_bytes, std::shared_ptr<CopyLink> link)
      : pool_(std::make_shared<HostPool>(max_bytes)), link_(std::move(link)) {}

  std::string name() const override { return "host memory"; }

  std::unique_ptr<Block> take(int64_t bytes, c10::Device device) override {
    at::Storage block = pool_->take(bytes, device, *link_);
    if (!block) return nullptr;
    return std::make_unique<HostBlock>(pool_, link_, std::move(block), device.type());
  }

  int64_t system_bytes() const override { return pool_->system_bytes(); }

  CopyLink& link() override { return *link_; }

 private:
  std::shared_ptr<HostPool> pool_;
  std::shared_ptr<CopyLink> link_;
};

}  // namespace

std::shared_ptr<OffloadMemory> host_memory(const HostMemoryOptions& options) {
  TORCH_CHECK_VALUE(options.max_bytes >= 0, "[host_memory] max_bytes: expected 0 or more, got ",
                    options.max_bytes, ".");
  return std::make_shared<HostMemory>(options.max_bytes, options.link ? options.link : copy_link());
}

}  // namespace remat
