// SPDX-License-Identifier: BSD-3-Clause

// An OffloadStore whose copies run concurrently with compute.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/offload_store.h>
#include <remat/offload/offload_memory.h>
#include <remat/policy/offload_terms.h>

namespace remat {

/// Action for a tensor for which no memory has room.
enum class WhenFull : uint8_t {
  kKeep,   ///< Leaves the tensor on the device. Each engine warns the first time.
  kRaise,  ///< put() throws.
};

/// Options of offload_engine(). Bytes are those of storages, so views of one storage are moved
/// once.
struct OffloadOptions {
  /// A storage goes to the first memory with room. Empty: host_memory().
  std::vector<std::shared_ptr<OffloadMemory>> memories{};
  int64_t min_bytes = int64_t{1} << 20;  ///< Smaller storages stay on the device
  /// Limit on the bytes stored at once. A storage that would exceed it stays on the device.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// Limit on the bytes prefetched before backward asks for them.
  int64_t prefetch_bytes = int64_t{256} << 20;
  /// Limit on the bytes being copied out at once. put() waits while the limit is exceeded.
  int64_t max_leaving_bytes = std::numeric_limits<int64_t>::max();
  /// Device to offload from; storages on other devices stay there. Unset: any device.
  std::optional<c10::Device> device{};
  WhenFull when_full = WhenFull::kKeep;
};

/// Totals since the engine was made, except the members that say "now".
struct OffloadStats {
  int64_t left_bytes = 0;        ///< Bytes copied out
  int64_t left_count = 0;        ///< Number of copies out
  int64_t fetched_bytes = 0;     ///< Bytes copied in
  int64_t fetched_count = 0;     ///< Number of copies in
  int64_t prefetched_count = 0;  ///< Number of copies in that began before backward asked
  int64_t unused_count = 0;      ///< Number of prefetched storages that were not used
  int64_t stayed_count = 0;   ///< Number of storages that had not left when backward asked for them
  int64_t full_count = 0;     ///< Number of storages that stayed because no memory had room
  double waited_us = 0;       ///< Time that threads waited for copies
  int64_t away_bytes = 0;     ///< Bytes stored now
  int64_t leaving_bytes = 0;  ///< Bytes being copied out now
  /// Bytes on the device now for this engine: storages that have not left yet or never will,
  /// prefetched storages, and storages that nobody needs but a copy still uses (see
  /// CopyEvent::may_go()). Includes storages that others hold too, but not storages that put() does
  /// not move. 0 after backward, or after the graph is dropped, once all copies are done.
  int64_t device_bytes = 0;
};

/// Moves the tensors that OFFLOAD calls keep out of the device during the forward, and back during
/// backward. Once nobody else holds a storage, the next put() starts to copy it out; its device
/// memory is freed when the copy is done. A storage that has not left yet when backward asks for it
/// stays on the device. Storages are prefetched in the order in which the last step asked for them
/// if this step has put the same sizes, otherwise in reverse order of put(). Any thread.
///
/// Ticket::get() throws, naming region and call, if a memory has failed or if the tensor was
/// written in place after put().
class REMAT_API OffloadEngine : public OffloadStore {
 public:
  virtual OffloadStats stats() const = 0;

  /// The limits, and the speed of each memory from and to `device`, for a MemoryPlanner. The first
  /// call for a device measures the speed, with copies of up to 32 MiB; make that call before steps
  /// run. If `device` is unset, it is OffloadOptions::device, else the current accelerator, else
  /// the CPU. Throws ValueError if OffloadOptions::device is of another type. Throws if a memory
  /// has no room for such a copy, and passes on errors of memories.
  virtual OffloadTerms terms(std::optional<c10::Device> device = std::nullopt) = 0;
};

/// @throws c10::ValueError for invalid options.
REMAT_API std::shared_ptr<OffloadEngine> offload_engine(OffloadOptions options = {});

}  // namespace remat
