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
  kAway,     ///< In `out.block`; on the device only while someone holds what give() returned
  kComing,   ///< In `out.block`, and prefetched
  kStays,    ///< On the device for good
};

/// A storage that the mover manages. Guarded by the mover's mutex.
struct MovedStorage {
  /// The way out of the device.
  struct Out {
    std::unique_ptr<OffloadMemory::Block> block;
    size_t memory = 0;    ///< Index of the block's memory
    CopyEventPtr copy;    ///< The copy into the block; null: done
    std::string failure;  ///< Error of a memory
  };
  /// The way back.
  struct Back {
    CopyEventPtr copy;   ///< The last copy from the block
    int64_t stream = 0;  ///< Stream that allocated its memory
    c10::weak_intrusive_ptr<c10::StorageImpl> given{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::VariableVersion version{0};  ///< Version counter of the tensors on `given`
  };

  Whereabouts whereabouts = Whereabouts::kWaiting;
  at::Storage here;  ///< Null if kAway
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  uint32_t version = 0;   ///< Version of the tensor at put()
  CopyEventPtr computed;  ///< Done when the storage has its values
  Out out;
  bool is_next = false;  ///< If kLeaving: stays, because it will be needed soon
  Back back;
  size_t tickets = 1;
  uint64_t sequence = 0;    ///< Number among all storages
  std::string description;  ///< For errors: "region 'block', call 'attention' (4096 bytes)"
};

}  // namespace remat::detail
