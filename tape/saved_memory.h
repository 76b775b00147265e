// SPDX-License-Identifier: BSD-3-Clause

// What the ops of a region have saved, as far as writes that autograd does not notice matter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include <remat/tape/outside_log.h>

namespace remat {

/// Note [Writes by way of data]: `tensor.data` has a version counter of its own, and an assignment
/// to it gives a tensor other memory without an op. Of neither is autograd told: it goes on with
/// what a saved tensor has in backward, where a replay makes what it had when it was saved. So both
/// raise. On the thread of the forward.
class SavedMemory {
 public:
  /// An op has saved `tensor`, in the slot of this number.
  void add(const at::Tensor& tensor, size_t slot);

  /// The slot of another tensor on the memory of `tensor`, which an op is about to write, whose
  /// version the write will not change; if there is one that somebody still has.
  std::optional<size_t> find_unversioned(const at::Tensor& tensor);

  /// A slot whose tensor has been given other memory since, if there is one.
  std::optional<size_t> find_exchanged() const;

 private:
  struct Saved {
    OutsideStorage::WeakTensor tensor;
    const void* memory;
    const void* counter;  // of versions; the slot has it
    size_t slot;
  };
  std::vector<Saved> saved_;
  std::unordered_multimap<const void*, size_t> by_memory_;  // into saved_
  size_t entered_ = 0;  // of saved_, in by_memory_: only regions that write need it
};

}  // namespace remat
