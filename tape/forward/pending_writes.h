// SPDX-License-Identifier: BSD-3-Clause

// Collectives that may still write.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include <remat/tape/outside_log.h>
#include <remat/tape/region.h>

namespace remat {

/// Note [Writes that go on]: an op of c10d returns a Work, and writes until somebody has waited for
/// that, which nobody sees. What the function reads before it waits is not what the collective
/// writes, but it may have the same storage, of which all bytes are kept. So the copy waits first.
///
/// Note [Functional collectives]: they return no Work. LibTorch has a table of these by the
/// results, which a process group may write by ops of its own, on a thread of its own, and so give
/// new versions. What is kept of one waits for all that the collective returns, but not before an
/// op reads it: other ranks may be there only after what this one sends next. The op that wraps a
/// result in a tensor subclass reads nothing; ops on the subclass read what is inside.
class PendingWrites {
 public:
  /// `region` outlives this; messages name it.
  explicit PendingWrites(const Region& region) : region_(region) {}

  /// `work` writes these memories; a send or receive, of which nobody waits twice, if `is_receive`.
  void add(const c10::IValue& work, bool is_receive, std::vector<const void*> memories);

  /// A functional collective writes `results`.
  void add_functional(c10::ArrayRef<at::Tensor> results);

  /// Waits for those that write the memory of `tensor`, which is about to be copied.
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
  /// The results of each that nobody has waited for here.
  std::vector<std::vector<OutsideStorage::WeakTensor>> functional_;
};

}  // namespace remat
