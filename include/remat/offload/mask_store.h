// SPDX-License-Identifier: BSD-3-Clause

// A store that packs masks into an eighth of their bytes.
#pragma once

#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/offload_store.h>

namespace remat {

/// Totals since the store was made.
struct MaskStats {
  int64_t count = 0;         ///< Number of masks
  int64_t mask_bytes = 0;    ///< Bytes of the masks as bool tensors
  int64_t packed_bytes = 0;  ///< Bytes of the masks as bits
};

/// Stores bool tensors as bits and restores them exactly; puts other tensors in the underlying
/// store unchanged, and also masks that do not fill their memory, such as a view of a part. A mask
/// that several nodes save is stored once. Any thread.
class REMAT_API MaskStore : public OffloadStore {
 public:
  virtual MaskStats stats() const = 0;
};

/// `store`: the store for packed bits and all other tensors. Null: all stay on the device.
REMAT_API std::shared_ptr<MaskStore> mask_store(std::shared_ptr<OffloadStore> store = nullptr);

}  // namespace remat
