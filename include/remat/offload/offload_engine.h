// SPDX-License-Identifier: BSD-3-Clause

// An OffloadStore whose copies run beside what is computed.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <remat/offload/offload_memory.h>
#include <remat/policy/offload_terms.h>
#include <remat/tape/export.h>
#include <remat/tape/offload_store.h>

namespace remat {

/// What becomes of a tensor that no memory has room for.
enum class WhenFull : uint8_t {
  kKeep,   ///< It stays where it is. The first one of an engine is a warning.
  kRaise,  ///< put() throws.
};

/// Bytes are those of storages: views and slots of one are moved once.
struct OffloadOptions {
  /// The first with room takes a storage. Empty: host_memory().
  std::vector<std::shared_ptr<OffloadMemory>> memories{};
  int64_t min_bytes = int64_t{1} << 20;  ///< Smaller storages stay.
  /// The most that is away at once; what comes then stays.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// The most that is fetched before backward asks for it.
  int64_t prefetch_bytes = int64_t{256} << 20;
  /// The most that is on its way out at once; put() waits then.
  int64_t max_leaving_bytes = std::numeric_limits<int64_t>::max();
  std::optional<c10::Device> device{};  ///< What is elsewhere stays. Unset: any device.
  WhenFull when_full = WhenFull::kKeep;
};

/// Since the engine was made, but for what is there now.
struct OffloadStats {
  int64_t left_bytes = 0;        ///< Copied out
  int64_t left_count = 0;        ///< Copies out
  int64_t fetched_bytes = 0;     ///< Copied in
  int64_t fetched_count = 0;     ///< Copies in
  int64_t prefetched_count = 0;  ///< Of those, begun before backward asked
  int64_t unused_count = 0;      ///< Of those, for nothing
  int64_t stayed_count = 0;      ///< Asked for before they had left
  int64_t full_count = 0;        ///< Stayed, since no memory had room
  double waited_us = 0;          ///< Of threads, for copies
  int64_t away_bytes = 0;        ///< Now
  int64_t leaving_bytes = 0;     ///< Now
  /// Now on the device for this engine: what has not left or stays, what was fetched ahead, and
  /// what nobody needs any more but a copy uses that no allocator knows of. Storages that others
  /// have, too, count; those that put() does not take do not. 0 after backward, and after a graph
  /// is dropped, once such copies are done.
  int64_t device_bytes = 0;
};

/// Moves what OFFLOAD calls keep out of the device while the forward goes on, and back while the
/// backward does. A storage leaves when nobody else has it any more, at the next put(); its memory
/// goes when the copy is done. What backward asks for and has not left simply stays. Storages come
/// back before they are asked for, in the order of the last step if this one has put the same
/// sizes, else the last put first. On any thread.
///
/// get() throws, naming region and call, what a memory failed with, and if the tensor was written
/// in place after put().
class REMAT_API OffloadEngine : public OffloadStore {
 public:
  virtual OffloadStats stats() const = 0;

  /// What a MemoryPlanner needs to know: limits, and how fast each memory is from and to `device`.
  /// The first call for a device measures that, with copies of up to 32 MiB; measure before steps
  /// run. Unset: the device that the engine is for, else the current accelerator, else the CPU.
  /// Throws what a memory throws, and if one has no room.
  virtual OffloadTerms terms(std::optional<c10::Device> device = std::nullopt) = 0;
};

/// @throws c10::ValueError for options that make no sense.
REMAT_API std::shared_ptr<OffloadEngine> offload_engine(OffloadOptions options = {});

}  // namespace remat
