// SPDX-License-Identifier: BSD-3-Clause

// Where a saved tensor lies, in case other code still has its memory in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <string>

#include <remat/engine/export.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// Note [Memory that others hold]: autograd saves memory, not a copy. Others may have that memory,
/// too: an attribute of a custom function's context (`ctx.buffer = y`), the receiver of the
/// region's result, a list. They see what a custom function's backward writes to the memory in
/// place, and backward sees what the host writes. So while somebody has that memory, backward gets
/// it, and the replayed value is discarded. Once nobody else has it, nobody can see a difference.
/// With user hooks, plain code saves what the hooks return, which may or may not be a copy. There
/// backward gets the replayed value: see Note [Writes in a backward].
///
/// If the memory holds something else than the replayed value, there are two possible causes. The
/// memory was written without a new version (by the host or through `data`), which plain code would
/// see. Or autograd has summed gradients into the memory because nobody else seemed to have it; in
/// plain code autograd's own saved tensor prevents that. So a difference raises. On devices other
/// than the CPU nothing is compared, since comparing would wait for the device.
///
/// Does not keep the memory alive.
class REMAT_API ForwardMemory {
 public:
  /// Requires has_layout(tensor). `is_hooked`: in plain code hooks would have got the tensor.
  ForwardMemory(const at::Tensor& tensor, bool is_hooked);

  bool is_hooked() const { return is_hooked_; }

  /// True if the memory has been freed.
  bool is_gone() const { return storage_.expired(); }

  /// Returns the saved tensor (described by `meta`) on its original memory, outside any graph;
  /// undefined if the memory has been freed or made smaller. Throws, with `where`, if its elements
  /// differ from `value`, which a replay has recomputed or a store has brought back; an undefined
  /// `value` is not compared. Usable from any thread.
  at::Tensor lock(const TensorMeta& meta, const at::Tensor& value,
                  c10::function_ref<std::string()> where) const;

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  int64_t offset_;
  std::unique_ptr<const int64_t[]> strides_;  // Null for a contiguous tensor.
  bool conjugated_;
  bool negated_;
  bool is_hooked_;
};

}  // namespace remat
