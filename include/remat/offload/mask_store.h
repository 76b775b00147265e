// SPDX-License-Identifier: BSD-3-Clause

// A store that keeps masks in an eighth of their bytes.
#pragma once

#include <cstdint>
#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/offload_store.h>

namespace remat {

/// Since the store was made.
struct MaskStats {
  int64_t count = 0;         ///< Masks
  int64_t mask_bytes = 0;    ///< Of these, as tensors
  int64_t packed_bytes = 0;  ///< As bits
};

/// Keeps bool tensors as bits, and gives them back as they were; other tensors as they are. One
/// that does not fill its memory, a view of a part, counts as another tensor. One that several
/// nodes save is there once. On any thread.
class REMAT_API MaskStore : public OffloadStore {
 public:
  virtual MaskStats stats() const = 0;
};

/// `store`: where bits and other tensors go. Null: they stay on the device.
REMAT_API std::shared_ptr<MaskStore> mask_store(std::shared_ptr<OffloadStore> store = nullptr);

}  // namespace remat
