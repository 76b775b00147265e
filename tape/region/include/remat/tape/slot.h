// SPDX-License-Identifier: BSD-3-Clause

// What a region remembers of a tensor that autograd saved, and the values that a replay gives back.
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

/// One tensor that autograd saved in a region's forward, and that was dropped.
struct Slot {
  Slot(size_t position, const at::Tensor& tensor);

  size_t index;
  size_t log_position = 0;     ///< In the region's OpLog: after which op it was saved.
  const OpInfo* op = nullptr;  ///< That saved it; null where no op did: a custom function.
  TensorMeta meta;
  SavedVersion version;
  std::unique_ptr<const InnerVersions> inner;  ///< Of a tensor of a Python class.
  const void* memory;            ///< Where it lay: an address, of other memory if it is gone.
  std::atomic<bool> live{true};  ///< False once its autograd node has been freed.
  /// A hash of how it lay in its memory where no op has saved it, and of its values if these are
  /// given (Origin::given()); of those alone in a call that is left out. 0: not compared.
  uint16_t layout = 0;
  Origin origin = Origin::inside();  ///< As logged, where no op has saved it.
};

/// The values that one replay gives to the slots of a region.
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
