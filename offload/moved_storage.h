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
  kWaiting,  ///< On the device: others have it too, or nothing was put after it.
  kLeaving,  ///< On the device: the copy is under way, or done while others have the storage.
  kAway,     ///< In `block`; on the device only as long as somebody has what give() gave.
  kComing,   ///< In `block`, and fetched before it was asked for.
  kStays,    ///< On the device for good.
};

/// Guarded by the mover's mutex.
struct MovedStorage {
  Whereabouts whereabouts = Whereabouts::kWaiting;
  at::Storage here;  ///< Not kAway
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  uint32_t version = 0;   ///< Of the tensor that was put
  CopyEventPtr computed;  ///< When it has its values
  std::unique_ptr<OffloadMemory::Block> block;
  OffloadMemory* memory = nullptr;  ///< Of the block
  size_t memory_number = 0;
  std::string failure;      ///< What a memory has failed with
  CopyEventPtr left;        ///< The copy into the block; null: done
  bool is_next = false;     ///< kLeaving: stays, as it will be asked for soon
  CopyEventPtr back;        ///< The last copy from the block
  int64_t back_stream = 0;  ///< That has allocated its memory
  c10::weak_intrusive_ptr<c10::StorageImpl> given{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::VariableVersion given_version{0};  ///< Of the tensors on it
  size_t tickets = 1;
  size_t number = 0;      ///< In the step
  uint64_t sequence = 0;  ///< Among all
  std::string region;
  std::string call;

  /// "region 'block', call 'attention' (4096 bytes)"
  std::string what() const;
};

}  // namespace remat::detail
