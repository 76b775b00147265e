// SPDX-License-Identifier: BSD-3-Clause

// Collectives that may still be writing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>

namespace remat {

/// Note [Writes that go on]: an op of c10d returns a Work, and may write until the function has
/// waited for the Work, a wait that remat does not see. Until then the function reads only other
/// memory, which may be on the same storage. Keeping a tensor copies all bytes of its storage, so
/// remat waits before such a copy.
///
/// Note [Functional collectives]: their ops return no Work; LibTorch has a table of Works by
/// result. A process group may write results by ops on another thread, which gives the results new
/// versions. So keeping a result waits for all results of the collective. The wait comes only when
/// an op reads a result, because other ranks may begin the collective only after this rank's next
/// send. The op that wraps a result in a tensor subclass reads nothing, but ops on the subclass
/// read the inner tensors.
class REMAT_API PendingWrites {
 public:
  /// `region` is named in messages, and must outlive this object.
  explicit PendingWrites(const Region& region) : region_(region) {}

  /// Notes that the collective of `work` writes `memories`. `is_receive`: the collective is a
  /// receive, whose Work must not be waited for twice.
  void add(const c10::IValue& work, bool is_receive, std::vector<const void*> memories);

  /// Notes that a functional collective writes `results`.
  void add_functional(c10::ArrayRef<at::Tensor> results);

  /// Waits for collectives that write the memory of `tensor`, which is about to be copied. Throws
  /// NotImplementedError for a receive that writes CPU memory.
  void settle(const at::Tensor& tensor);

 private:
  void settle_functional(const void* memory);

  const Region& region_;
  struct Writing {
    c10::IValue work;
    bool is_receive;
    std::vector<const void*> memories;
  };
  std::vector<Writing> writing_;
  /// Results that settle() has not waited for, grouped by collective.
  std::vector<std::vector<OutsideStorage::WeakTensor>> functional_;
};

}  // namespace remat
