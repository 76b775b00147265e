// SPDX-License-Identifier: BSD-3-Clause

// A storage on its way out of a device and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <remat/offload/copy_event.h>
#include <remat/offload/offload_memory.h>

namespace remat::detail {

enum class Whereabouts : uint8_t {
  kWaiting,  ///< On the device, while others hold it too or until the next put()
  kLeaving,  ///< On the device, while the copy is in flight, or done while others hold the storage
  kAway,     ///< In `block`; on the device only while someone holds what give() returned
  kComing,   ///< In `block`, and prefetched
  kStays,    ///< On the device for good
};

/// A storage that the mover manages. Guarded by the mover's mutex.
struct MovedStorage {
  Whereabouts whereabouts = Whereabouts::kWaiting;
  at::Storage here;  ///< Null if kAway
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  uint32_t version = 0;   ///< Version of the tensor at put()
  CopyEventPtr computed;  ///< Done when the storage has its values
  std::unique_ptr<OffloadMemory::Block> block;
  OffloadMemory* memory = nullptr;  ///< Memory of the block
  size_t memory_number = 0;
  std::string failure;      ///< Error of a memory
  CopyEventPtr left;        ///< The copy into the block; null: done
  bool is_next = false;     ///< If kLeaving: stays, because it will be needed soon
  CopyEventPtr back;        ///< The last copy from the block
  int64_t back_stream = 0;  ///< Stream that allocated its memory
  c10::weak_intrusive_ptr<c10::StorageImpl> given{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::VariableVersion given_version{0};  ///< Version counter of the tensors on `given`
  size_t tickets = 1;
  size_t number = 0;      ///< Number in its step
  uint64_t sequence = 0;  ///< Number among all
  std::string region;
  std::string call;

  /// Description for errors: "region 'block', call 'attention' (4096 bytes)".
  std::string what() const;
};

}  // namespace remat::detail
