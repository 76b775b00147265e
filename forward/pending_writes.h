// SPDX-License-Identifier: BSD-3-Clause

// Collectives that may still be writing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>

namespace remat {

/// Note [Writes that go on]: an op of c10d returns a Work, and writes until somebody has waited for
/// it, which nobody observes. What the function reads before it waits is not what the collective
/// writes, but it may be on the same storage, of which all bytes are kept. So the copy waits first.
///
/// Note [Functional collectives]: these return no Work. LibTorch has a table of Works by result. A
/// process group may write the results by ops of its own, on a thread of its own, and so give them
/// new versions. Keeping a result waits for all results of the collective, but only when an op
/// reads one: other ranks may get there only after this rank's next send. The op that wraps a
/// result in a tensor subclass reads nothing; ops on the subclass read the inner tensors.
class PendingWrites {
 public:
  /// `region` outlives this object; messages name it.
  explicit PendingWrites(const Region& region) : region_(region) {}

  /// `work` writes these memories. `is_receive`: a send or receive, which must not be waited for
  /// twice.
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
  /// Groups of results that nobody has waited for here.
  std::vector<std::vector<OutsideStorage::WeakTensor>> functional_;
};

}  // namespace remat
