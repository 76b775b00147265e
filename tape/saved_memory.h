// SPDX-License-Identifier: BSD-3-Clause

// What a region's slots are of, as far as changes that autograd does not notice matter.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <remat/tape/byte_ranges.h>
#include <remat/tape/op_call.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/region.h>

namespace remat {

/// Note [Writes by way of data]: `tensor.data` has a version counter of its own, and an assignment
/// to it gives a tensor other memory without an op. Of neither is autograd told: it goes on with
/// what a saved tensor has in backward, where a replay makes what it had when it was saved. So both
/// raise when the region ends, if the graph that has saved it is there still. On the thread of the
/// forward.
class SavedMemory {
 public:
  /// `slot` is of `tensor`. It lives longer.
  void add(const at::Tensor& tensor, const Slot& slot);

  /// `op` is about to write `tensor`: of slots of other tensors on its memory the versions will not
  /// change.
  void note_write(const at::Tensor& tensor, const OpInfo& op);

  /// A slot that is needed and has been changed.
  struct Change {
    const Slot* slot = nullptr;  ///< Null: there is none.
    const OpInfo* op = nullptr;  ///< That wrote its memory; null if it has been given other memory.
  };
  Change find_change() const;

 private:
  struct Saved {
    OutsideStorage::WeakTensor tensor;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its address stays taken
    const void* counter;                                // of versions; the slot has it
    const Slot* slot;
    ByteRange span;
    bool is_dense;
    const OpInfo* written_by = nullptr;
  };
  static bool overlap(const Saved& saved, const at::Tensor& written);

  std::vector<Saved> saved_;
  std::unordered_multimap<const c10::StorageImpl*, size_t> by_storage_;  // into saved_
  size_t entered_ = 0;  // of saved_, in by_storage_: only regions that write need it
};

}  // namespace remat
