// SPDX-License-Identifier: BSD-3-Clause

// Slots for the tensors that autograd saved in a region, and the values that a replay gives them.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/inner_versions.h>
#include <remat/tape/op_log.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

/// One tensor that autograd saved in a region's forward and that was dropped.
struct Slot {
  Slot(size_t position, const at::Tensor& tensor);

  size_t index;
  size_t log_position = 0;     ///< Position in the region's OpLog when it was saved.
  const OpInfo* op = nullptr;  ///< The op that saved it; null for a custom function.
  TensorMeta meta;
  SavedVersion version;
  std::unique_ptr<const InnerVersions> inner;  ///< Set for a tensor subclass.
  const void* memory;            ///< Its memory: an address, which may have been reused.
  std::atomic<bool> live{true};  ///< False once its autograd node has been freed.
  /// If no op has saved the tensor: a hash of its layout, and of its values if these are given
  /// (Origin::given()). In a call that is left out, a hash of such values alone. 0 means not
  /// compared.
  uint16_t layout = 0;
  Origin origin = Origin::inside();  ///< As logged, if no op has saved it.
};

/// The values that one replay gives a region's slots.
class REMAT_API ReplayedSlots {
 public:
  explicit ReplayedSlots(size_t count) : values_(count) {}

  bool has(size_t index) const { return index < values_.size() && values_[index].defined(); }
  void put(size_t index, at::Tensor value) { values_[index] = std::move(value); }
  const at::Tensor& get(size_t index) const { return values_[index]; }
  at::Tensor take(size_t index) { return has(index) ? std::move(values_[index]) : at::Tensor(); }

 private:
  std::vector<at::Tensor> values_;
};

}  // namespace remat
