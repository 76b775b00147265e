// SPDX-License-Identifier: BSD-3-Clause

// Blocks of host memory.
#include <c10/util/Exception.h>

#include <utility>

#include "host_pool.h"
#include "pages.h"

#include <remat/offload/offload_memory.h>

namespace remat {
namespace {

class HostBlock final : public OffloadMemory::Block {
 public:
  HostBlock(std::unique_ptr<detail::HostPool::Piece> piece, std::shared_ptr<CopyLink> link)
      : piece_(std::move(piece)), link_(std::move(link)) {}

  CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
    return link_->copy_out(piece_->storage(), device, after);
  }
  CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
    return link_->copy_in(device, piece_->storage(), after);
  }

 private:
  std::unique_ptr<detail::HostPool::Piece> piece_;
  std::shared_ptr<CopyLink> link_;
};

class HostMemory final : public OffloadMemory {
 public:
  HostMemory(int64_t max_bytes, std::shared_ptr<CopyLink> link)
      : max_bytes_(max_bytes),
        link_(std::move(link)),
        pool_(std::make_shared<detail::HostPool>(max_bytes, link_)) {}

  std::string name() const override { return "host memory"; }

  std::unique_ptr<Block> take(int64_t bytes, c10::Device device) override {
    auto piece = pool_->take(bytes, device);
    return piece ? std::make_unique<HostBlock>(std::move(piece), link_) : nullptr;
  }

  int64_t system_bytes() const override { return pool_->system_bytes(); }
  int64_t max_bytes() const override { return max_bytes_; }
  int64_t block_bytes() const override { return detail::kPageBytes; }
  CopyLink& link() override { return *link_; }

 private:
  int64_t max_bytes_;
  std::shared_ptr<CopyLink> link_;
  std::shared_ptr<detail::HostPool> pool_;
};

}  // namespace

std::shared_ptr<OffloadMemory> host_memory(const HostMemoryOptions& options) {
  TORCH_CHECK_VALUE(options.max_bytes >= 0, "[host_memory] max_bytes: expected 0 or more, got ",
                    options.max_bytes, ".");
  return std::make_shared<HostMemory>(options.max_bytes, options.link ? options.link : copy_link());
}

}  // namespace remat
