// SPDX-License-Identifier: BSD-3-Clause

// Changes of what a region's slots are of that autograd does not notice.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <remat/tape/byte_ranges.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// Note [Writes by way of data]: `tensor.data` has a version counter of its own, and an assignment
/// to it gives a tensor other memory without an op. Of neither is autograd told: it goes on with
/// what a saved tensor has in backward, where a replay makes what it had when it was saved. So both
/// raise when the region ends, if the graph that has saved it is there still, and if the write has
/// changed bytes. Nothing is done for a saved tensor until somebody has other versions of its
/// memory: Note [Data hooks]. On the thread of the forward.
class SavedMemory {
 public:
  /// `slot` of `region` is of `tensor`, which has the versions of `original`. `is_input`: of a
  /// region inside, by way of another tensor.
  void add(const at::Tensor& tensor, const at::Tensor& original,
           const std::shared_ptr<const Region>& region, const Slot& slot, bool is_input);

  /// There is a tensor on the memory of `tensor` that has versions of its own.
  void after_data(const at::Tensor& tensor);
  /// The same, of all that is on `storage`.
  void after_data(const c10::Storage& storage);

  /// `tensor` is about to get other memory.
  void before_set_data(const at::Tensor& tensor);

  /// `op` is about to write `tensor`; it has written all it writes.
  void before_write(const at::Tensor& tensor, const OpInfo& op);
  void after_writes() {
    if (C10_UNLIKELY(!writes_.empty())) finish_writes();
  }

  /// A slot that is needed and has been changed.
  struct Change {
    const Slot* slot = nullptr;  ///< Null: there is none.
    const OpInfo* op = nullptr;  ///< That wrote its memory; null if it has been given other memory.
  };
  Change find_change();

 private:
  /// What was saved: addresses, of which others may have the first two by now.
  struct Saved {
    const Slot* slot;
    const c10::TensorImpl* tensor;
    const c10::StorageImpl* storage;
    const void* versions;
    ByteRange bytes;                 // in the storage, of those that lie there without gaps
    c10::VariableVersion counter{};  // if the slot has another one: its address stays taken
    bool is_watched = false;
  };
  /// Of that, what others may write.
  struct Watched {
    const Slot* slot;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its address stays taken
    const void* versions;
    ByteRange bytes;
    std::optional<TensorLayout> layout;  // if it is known
    const OpInfo* written_by = nullptr;
  };
  struct Write {
    Watched* to;
    const OpInfo* op;
    at::Tensor tensor;
    uint64_t bytes;  // a hash
  };
  void watch(Saved& saved, const c10::Storage& storage, std::optional<TensorLayout> layout);
  void finish_writes();

  std::vector<std::shared_ptr<const Region>> regions_;  // of the slots; several if cut
  std::vector<Saved> saved_;
  std::unordered_multimap<const c10::StorageImpl*, Watched> watched_;
  std::vector<const Slot*> exchanged_;
  std::vector<Write> writes_;  // of the op that runs
};

}  // namespace remat
