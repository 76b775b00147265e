// SPDX-License-Identifier: BSD-3-Clause

#include "host_pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>

#include <remat/policy/offload_terms.h>

namespace remat {
namespace detail {

std::unique_ptr<HostPool::Piece> HostPool::take_piece(int64_t bytes, c10::Device device) {
  at::Storage block = take_block(whole_pages(bytes), device);
  if (!block) return nullptr;
  return std::make_unique<Piece>(shared_from_this(), std::move(block), device.type());
}

at::Storage HostPool::take_block(int64_t size, c10::Device device) {
  if (process_.is_forked())
    return size <= max_bytes_ ? link_->allocate_host(size, device) : at::Storage();
  at::Storage block = take_free(size, device);
  if (block) return block;
  Blocks unfit;  // freed after make_room() has released the lock
  if (!make_room(size, unfit)) return {};
  unfit.clear();
  return allocate(size, device);
}

at::Storage HostPool::take_free(int64_t size, c10::Device device) {
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound({device.type(), size});
  if (fit == free_.end() || fit->first.first != device.type()) return {};
  // With a limit a block must have the exact size, because plans count on the rest of the room.
  const int64_t most_over = max_bytes_ == OffloadPlace::kNoLimit ? size / 4 : 0;
  if (fit->first.second - size > most_over) return {};
  at::Storage block = std::move(fit->second);
  free_.erase(fit);
  used_bytes_ += static_cast<int64_t>(block.nbytes());
  return block;
}

// Called when no free block fits. Moves free blocks to `unfit`, which the caller frees, until a new
// block of `size` is within the limit. Keeps the other free blocks, because the next step may use
// them.
bool HostPool::make_room(int64_t size, Blocks& unfit) {
  const std::lock_guard lock(mutex_);
  const int64_t most = std::min(max_bytes_, 2 * std::max(peak_bytes_, used_bytes_ + size));
  while (size > most - bytes_ && !free_.empty()) {
    bytes_ -= free_.begin()->first.second;
    unfit.insert(free_.extract(free_.begin()));
  }
  if (size > max_bytes_ - bytes_) return false;
  bytes_ += size;
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return true;
}

at::Storage HostPool::allocate(int64_t size, c10::Device device) {
  try {
    return link_->allocate_host(size, device);
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

void HostPool::give_back(at::Storage block, c10::DeviceType device) {
  if (process_.is_forked()) return;
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<int64_t>(block.nbytes());
  used_bytes_ -= size;
  free_.emplace(std::make_pair(device, size), std::move(block));
}

void HostPool::give_up(int64_t size) {
  const std::lock_guard lock(mutex_);
  bytes_ -= size;
  used_bytes_ -= size;
}

int64_t HostPool::system_bytes() const {
  if (process_.is_forked()) return 0;
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace detail

std::shared_ptr<OffloadMemory> host_memory(const HostMemoryOptions& options) {
  TORCH_CHECK_VALUE(options.max_bytes >= 0, "[host_memory] max_bytes: expected 0 or more, got ",
                    options.max_bytes, ".");
  return std::make_shared<detail::HostPool>(options.max_bytes,
                                            options.link ? options.link : copy_link());
}

}  // namespace remat
