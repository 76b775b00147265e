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

/// Note [Writes that go on]: an op of c10d returns a Work, and writes until somebody has waited for
/// the Work, which nobody observes. Before the wait the function reads only other memory, which may
/// lie on the same storage. All bytes of a storage are copied to keep it, so the copy waits first.
///
/// Note [Functional collectives]: their ops return no Work; LibTorch has a table of Works by
/// result. A process group may write results by ops on another thread, which gives them new
/// versions. Keeping a result waits for all results of the collective, but only when an op reads
/// one: other ranks may begin the collective only after this rank's next send. The op that wraps a
/// result in a tensor subclass reads nothing; ops on the subclass read the inner tensors.
class REMAT_API PendingWrites {
 public:
  /// `region` outlives this object; messages name it.
  explicit PendingWrites(const Region& region) : region_(region) {}

  /// The collective of `work` writes these memories. `is_receive`: a send or receive, which must
  /// not be waited for twice.
  void add(const c10::IValue& work, bool is_receive, std::vector<const void*> memories);

  /// A functional collective writes `results`.
  void add_functional(c10::ArrayRef<at::Tensor> results);

  /// Waits for collectives that write the memory of `tensor`, which is about to be copied.
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
