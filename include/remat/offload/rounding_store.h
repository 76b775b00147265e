// SPDX-License-Identifier: BSD-3-Clause

// A store that keeps numbers in fewer bits.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/offload_store.h>

namespace remat {

/// Since the store was made.
struct RoundingStats {
  int64_t count = 0;         ///< Tensors that were rounded
  int64_t tensor_bytes = 0;  ///< Of these, as they were
  int64_t rounded_bytes = 0;
  double max_error = 0;           ///< The largest difference of a finite element
  double max_relative_error = 0;  ///< Of a tensor: its difference's 2-norm over its own
};

/// Keeps tensors of floating point numbers in a smaller type, each over a power of two that makes
/// its largest number one of the largest of that type, and gives them back in their own type:
/// gradients are approximations. What is infinite or no number stays so, and what is a number
/// stays one; below the smallest normal number of a tensor's own type it may become zero. Others
/// are kept as they are: those that do not fill their memory, and of other types. On any thread.
class REMAT_API RoundingStore : public OffloadStore {
 public:
  bool is_exact() const override { return false; }

  /// Waits for the devices whose tensors were rounded.
  virtual RoundingStats stats() const = 0;
};

/// `dtype`: kBFloat16, kHalf, kFloat8_e4m3fn or kFloat8_e5m2. `store`: where what is rounded and
/// what is not goes. Null: it stays on the device. A region takes it with determinism = kNone only.
/// @throws c10::ValueError for other types.
REMAT_API std::shared_ptr<RoundingStore> rounding_store(
    c10::ScalarType dtype, std::shared_ptr<OffloadStore> store = nullptr);

}  // namespace remat
