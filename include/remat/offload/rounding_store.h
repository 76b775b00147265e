// SPDX-License-Identifier: BSD-3-Clause

// A store that rounds numbers to fewer bits.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/offload_store.h>

namespace remat {

/// Totals since the store was made.
struct RoundingStats {
  int64_t count = 0;         ///< Number of tensors that were rounded
  int64_t tensor_bytes = 0;  ///< Bytes of these tensors before rounding
  int64_t rounded_bytes = 0;
  double max_error = 0;           ///< Largest absolute error of a finite element
  double max_relative_error = 0;  ///< Largest relative error of a tensor, in the 2-norm
};

/// Stores floating point tensors in a smaller dtype and restores them in their own dtype, so
/// gradients are approximations. Each tensor is scaled by a power of two that brings its largest
/// number near the largest number of the smaller dtype. Infinities and NaNs are preserved, and
/// finite numbers stay finite; numbers that are subnormal in the tensor's own dtype may become
/// zero. Other tensors, and views of a part of a storage, are stored unchanged. Any thread.
class REMAT_API RoundingStore : public OffloadStore {
 public:
  bool is_exact() const override { return false; }

  /// Waits for the devices whose tensors were rounded.
  virtual RoundingStats stats() const = 0;
};

/// `dtype`: kBFloat16, kHalf, kFloat8_e4m3fn or kFloat8_e5m2. `store`: the store for rounded and
/// all other tensors; null: all stay on the device. Regions accept a rounding store only with
/// determinism = kNone.
/// @throws c10::ValueError for other dtypes.
REMAT_API std::shared_ptr<RoundingStore> rounding_store(
    c10::ScalarType dtype, std::shared_ptr<OffloadStore> store = nullptr);

}  // namespace remat
