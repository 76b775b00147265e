// SPDX-License-Identifier: BSD-3-Clause

// Detecting changes to saved tensors that autograd does not notice.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/byte_ranges.h>
#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

/// Note [Writes by way of data]: `tensor.data` has its own version counter, and an assignment to it
/// gives a tensor other memory without an op. Autograd notices neither, so in backward plain code
/// reads the saved tensor's present value, whereas a replay recomputes the value at the time of
/// saving. So a write or an assignment raises at the region's end, if the graph that has saved the
/// tensor still exists and the write has changed bytes. Nothing is done for a saved tensor until
/// its memory gets a second version counter: Note [Data hooks]. For the forward's thread only.
class SavedMemory {
 public:
  /// Adds `slot` of `region`, which holds `tensor`. `original` is a tensor on the same storage
  /// whose version counter counts the program's writes. `is_input`: a nested region saves its
  /// argument `tensor` through an alias with another version counter, so writes are watched at
  /// once.
  void add(const at::Tensor& tensor, const at::Tensor& original,
           const std::shared_ptr<const Region>& region, const Slot& slot, bool is_input);

  /// Call it when another tensor on the memory of `tensor` has got its own version counter.
  void after_data(const at::Tensor& tensor);
  /// Like after_data(tensor), for all tensors on `storage`.
  void after_data(const c10::Storage& storage);

  /// Call it when `tensor` is about to get other memory.
  void before_set_data(const at::Tensor& tensor);

  /// Call it before `tensor`, on memory from outside, is written, because `tensor` may be a `data`
  /// tensor that is older than the data hooks.
  void before_outside_write(const at::Tensor& tensor);
  /// Call before_write() when `op` is about to write `tensor`, and after_writes() afterwards.
  void before_write(const at::Tensor& tensor, const OpInfo& op);
  void after_writes() {
    if (C10_UNLIKELY(!writes_.empty())) finish_writes();
  }

  /// Returns a live slot whose tensor has been changed (null if there is none), and the op that
  /// wrote the tensor (null if its memory was exchanged).
  std::pair<const Slot*, const OpInfo*> find_change();

 private:
  /// A saved tensor. The addresses `tensor` and `storage` may have been reused.
  struct Saved {
    const Slot* slot;
    const c10::TensorImpl* tensor;
    const c10::StorageImpl* storage;
    const void* versions;
    ByteRange bytes;                 // The tensor's bytes in the storage; all bytes if it has gaps.
    c10::VariableVersion counter{};  // Keeps `versions` alive if the slot does not; else unset.
    bool is_watched = false;
  };
  /// A saved tensor that may be written by way of another version counter.
  struct Watched {
    const Slot* slot;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // Keeps the address.
    const void* versions;
    ByteRange bytes;
    std::optional<TensorLayout> layout;  // Unset if unknown.
    const OpInfo* written_by = nullptr;
  };
  struct Write {
    Watched* to;
    const OpInfo* op;
    at::Tensor tensor;
    uint64_t bytes;  // Hash of the bytes before the write.
  };
  void watch(Saved& saved, const c10::Storage& storage, std::optional<TensorLayout> layout);
  void finish_writes();

  std::vector<std::shared_ptr<const Region>> regions_;  // Regions of the slots; several if cut.
  std::vector<Saved> saved_;
  std::unordered_multimap<const c10::StorageImpl*, Watched> watched_;
  std::vector<const Slot*> exchanged_;
  std::vector<Write> writes_;  // Writes of the running op.
};

}  // namespace remat
