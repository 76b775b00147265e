// SPDX-License-Identifier: BSD-3-Clause

// A slot of a region.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/engine/inner_versions.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// One tensor that autograd saved in a region's forward and that was dropped.
struct Slot {
  Slot(size_t position, const at::Tensor& tensor)
      : index(position),
        meta(tensor),
        version(tensor),
        inner(is_of_python_class(tensor) ? std::make_unique<const InnerVersions>(tensor) : nullptr),
        memory(memory_of(tensor)) {}

  size_t index;
  size_t log_position = 0;     ///< Position in the region's OpLog when the tensor was saved.
  const OpInfo* op = nullptr;  ///< The op that saved the tensor; null for a custom function.
  TensorMeta meta;
  SavedVersion version;
  std::unique_ptr<const InnerVersions> inner;  ///< Set for a tensor subclass.
  const void* memory;            ///< Address of the tensor's memory, which may have been reused.
  std::atomic<bool> live{true};  ///< False once its autograd node has been freed.
  /// If no op has saved the tensor, a hash of its layout and, if its memory is Origin::given(), of
  /// its values. If an op has saved the tensor, a hash of given values alone, for replays that
  /// leave out the op's call, and so do not compare the op. If 0, nothing is compared.
  uint16_t layout = 0;
  Origin origin = Origin::inside();  ///< Logged origin, if no op has saved the tensor.
};

}  // namespace remat
