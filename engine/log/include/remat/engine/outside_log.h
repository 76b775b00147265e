// SPDX-License-Identifier: BSD-3-Clause

// The storages from outside that a region's ops use, with their versions and, where the region
// writes them, their old values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/engine/byte_ranges.h>
#include <remat/engine/current_node.h>
#include <remat/engine/export.h>
#include <remat/engine/first_position.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/inner_versions.h>
#include <remat/engine/op_log.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// Advice for modules whose weights are gathered in the region.
inline constexpr const char* kCheckpointInside =
    "Put the checkpoint inside the sharded module (wrap the block first, then shard it), or free "
    "and fill memory outside of the region.";

/// A storage from outside the region, or a tensor from outside that has no storage. Held weakly.
/// The class is large because each member is one fact that the forward finds out about the storage.
class REMAT_API OutsideStorage {
 public:
  explicit OutsideStorage(const at::Tensor& tensor);

  /// The tensor by which the region met the storage; expired if the tensor is dead.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  const WeakTensor& first_tensor() const { return tensor_; }
  bool is_first_tensor(const at::Tensor& tensor) const {
    return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  }

  /// Identifies the storage. The address is not reused while this object lives, even if the storage
  /// is freed.
  const void* address() const { return address_; }

  /// False for a tensor without storage, which cannot be copied.
  bool has_storage() const { return storage_.has_value(); }

  /// False if the .grad of first_tensor() has been replaced since the region met the storage.
  bool has_first_grad() const;

  /// Notes that an op reads the data of `tensor`, which is on this storage.
  void mark_read(const at::Tensor& tensor);
  bool is_read() const { return read_; }

  /// Notes that a collective writes the storage, so it is memory that FSDP gathers, not a weight.
  void mark_received() { received_ = true; }
  bool is_received() const { return received_; }

  /// Throws NotImplementedError, with `where`, if the storage's size has changed since the region
  /// met it and the storage is not gathered memory.
  void check_size(c10::function_ref<std::string()> where) const;

  /// True if a gatherer of the storage's memory is known: see Note [Gathered memory].
  bool is_gathered() const;
  /// Gathers the storage's memory if the memory is freed now.
  void gather_again() const;

  /// Notes that the storage holds a cast that replays repeat: Note [Casts that a cache answers].
  void mark_cast(Origin cast) { cast_ = cast; }
  bool is_cast() const { return cast_.has_value(); }
  /// The storage's origin in a replay, if it holds a cast.
  const std::optional<Origin>& cast() const { return cast_; }

  /// Notes that the region's argument `i` lies on the storage. `is_whole`: it covers all bytes.
  void mark_argument(size_t i, bool is_whole) {
    is_argument_ = true;
    if (is_whole && !whole_argument_) whole_argument_ = i;
  }
  bool is_argument() const { return is_argument_; }
  /// The first argument that covers all bytes of the storage.
  std::optional<size_t> whole_argument() const { return whole_argument_; }

  /// Call it before the region's first write, which is to `tensor`. See Note [What a write keeps].
  void begin_write(const at::Tensor& tensor);
  bool is_written() const { return written_ != nullptr; }

  /// For a written storage: the part to keep before an op reads `tensor`; nullopt if all bytes of
  /// `tensor` are in known().
  std::optional<TensorLayout> part_to_keep(const at::Tensor& tensor) const;
  /// The part that the region read before its first write; nullopt if it read nothing.
  std::optional<TensorLayout> part_read() const;
  /// A layout of all bytes.
  TensorLayout whole() const;

  /// Keeps a copy of the part's present values. The scopes around the region decide where the copy
  /// is kept.
  void keep(const c10::Storage& storage, const TensorLayout& part);
  /// Notes that a replay recomputes the bytes of `tensor` (or all bytes) before it reads them.
  void cover(const at::Tensor& tensor);
  void cover_all();

  /// Frees the kept parts. Call it when no replay will read them.
  void drop_kept();

  /// The position of `tensor` in the graph before the region's first write, if that write was to
  /// `tensor` or a view of it; else null.
  const GraphPlace* place_before_write(const at::Tensor& tensor) const;

  /// Calls `visit` for each kept part.
  void visit_kept(c10::function_ref<void(const TensorLayout&, const HeldStorage&)> visit) const;

  /// Returns the kept parts as bytes, in a storage of size_bytes_; undefined if the region has not
  /// written the storage. May replay outer regions.
  at::Tensor unpack_kept() const;
  /// True if unpack_kept() allocates new memory. Otherwise its result may be memory that other code
  /// reads, because hooks may return the same tensor each time.
  bool unpacks_afresh() const;
  /// True if `unpacked` is the kept copy itself, which must not be written.
  bool is_kept_copy(const at::Tensor& unpacked) const;
  /// The bytes that replays may read before writing them; null if they may read all.
  const ByteRanges* known() const;

  /// Gives replays `bytes`, a copy of all bytes from before a write that this region did not do.
  /// See Note [Writes after the region].
  void hand_over(std::shared_ptr<const at::Tensor> bytes) const;
  std::shared_ptr<const at::Tensor> handed_over() const;

  /// Call it before the storage is written through a tensor with another version counter. Usable
  /// from any thread.
  void mark_written_by_alias() const;

  /// True if the storage was written since the region met it, as far as versions tell.
  bool changed() const { return version_.changed(); }
  /// True if `tensor`, on this storage, was written without a new version since the region met it.
  bool has_other_bytes(const at::Tensor& tensor) const { return version_.has_other_bytes(tensor); }
  /// True if `tensor`, on this storage, has another version counter than first_tensor() had.
  bool has_alias(const at::Tensor& tensor) const {
    return version_.counter() && !tensor.is_inference() && !version_.is_of(tensor);
  }

  /// Throws autograd's in-place error, with `where`, if `tensor`, on this storage, was written
  /// since the region met the storage.
  void check_unchanged(const at::Tensor& tensor, c10::function_ref<std::string()> where) const;

  /// Calls InnerVersions::check_unchanged() for a tensor subclass.
  void check_inner(const at::Tensor& tensor, bool may_be_copy,
                   c10::function_ref<std::string()> where) const;

  /// The inner tensors of a tensor subclass when the region met it; null for any other tensor.
  const InnerVersions* inner() const { return inner_.get(); }

  /// True for a tensor subclass whose inner tensors had these memories (InnerVersions::memories())
  /// when the region met it.
  bool consists_of(c10::ArrayRef<const void*> memories) const {
    return inner_ && inner_->have(memories);
  }

  /// True if first_tensor() is on other memory now.
  bool is_exchanged() const;

  /// True if the storage's memory has been freed.
  bool is_gone() const { return storage_ && storage_->expired(); }

  /// True if the storage's memory did not come from LibTorch's allocator.
  bool is_foreign() const { return is_foreign_; }

  /// True if is_foreign() and the memory has been freed.
  bool is_gone_foreign_memory() const { return is_foreign_ && is_gone(); }

  /// False if writes to this storage change no version (inference tensors, memory from outside
  /// LibTorch's allocator) and `storage` differs from the bytes that the region met. Not checked,
  /// so true, for leaves that require grad, on devices, and above kMaxCompared bytes.
  bool has_bytes_of(const c10::Storage& storage) const;
  static constexpr size_t kMaxCompared = size_t{1} << 20U;

  /// Call it when a custom function saves the storage and no op has read it. Hashes the bytes,
  /// unless the storage is an argument's.
  void note_saved(const c10::Storage& storage);
  /// False if `storage` differs from the bytes hashed by note_saved().
  bool may_be_saved(const c10::Storage& storage) const;

  const TensorMeta& meta() const { return meta_; }

 private:
  void cover(const TensorLayout& layout);
  bool is_kept_whole() const;

  const void* address_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  WeakTensor tensor_;
  const c10::TensorImpl* grad_;  // The .grad of tensor_; never dereferenced.
  TensorMeta meta_;
  SavedVersion version_;
  std::unique_ptr<const InnerVersions> inner_;  // For a tensor subclass.
  size_t size_bytes_ = 0;
  uint32_t shard_version_ = 0;  // For gathered memory: the version of its shard.
  bool is_foreign_ = false;
  uint64_t hash_ = 0;         // Hash of the bytes that the region met, if they are compared.
  uint64_t saved_bytes_ = 0;  // Hash of the bytes at note_saved().
  bool read_ = false;
  std::optional<Origin> cast_;
  bool received_ = false;
  bool is_argument_ = false;
  std::optional<size_t> whole_argument_;
  ByteRange read_bytes_{~size_t{0}, 0};  // Range of all bytes read before the first write.
  struct Written;
  std::shared_ptr<Written> written_;                       // Set at the first write.
  mutable std::shared_ptr<const at::Tensor> handed_over_;  // Accessed atomically.
  mutable bool written_by_alias_ = false;                  // Accessed atomically.
};

/// All outside storages, in the order of their first use: the region's arguments first.
class REMAT_API OutsideLog {
 public:
  Origin add(const at::Tensor& tensor);

  /// Adds the next argument (number arguments().size()) and its origin. `is_whole`: the argument
  /// covers all bytes of its storage.
  void add_argument(Origin origin, bool is_whole) {
    if (origin.is_outside()) storages_[origin.number()].mark_argument(arguments_.size(), is_whole);
    arguments_.push_back(origin);
  }
  c10::ArrayRef<Origin> arguments() const { return arguments_; }

  /// Adds a tensor from outside whose storage is already in the log, or that a SAVE call uses.
  void add_captured(const at::Tensor& tensor);

  /// The tensors from outside that the region met, arguments included, as far as they are alive and
  /// require grad now.
  std::vector<at::Tensor> captured() const;

  /// Call it when the function has returned. Notes whether the function has set the .grad of a
  /// storage's first_tensor().
  void finish();
  bool sets_grads() const { return sets_grads_; }

  /// The origin to log for a tensor of origin `origin`.
  Origin logged(Origin origin) const {
    if (origin.is_unwritten()) return Origin::inside();
    if (!origin.is_outside()) return origin;
    return storages_[origin.number()].cast().value_or(origin);
  }

  /// The origin of the storage with that address; unknown if the region has not met it.
  Origin find(const void* address) const;
  /// The origin of the tensor subclass with these inner memories; unknown if there is none.
  Origin find_wrapper(c10::ArrayRef<const void*> memories) const;

  /// Calls gather_again() of all storages, in the order of their first use.
  void gather_again() const;

  size_t size() const { return storages_.size(); }
  OutsideStorage& operator[](size_t number) { return storages_[number]; }
  const OutsideStorage& operator[](size_t number) const { return storages_[number]; }

 private:
  std::vector<OutsideStorage> storages_;
  std::vector<OutsideStorage::WeakTensor> captured_;  // From add_captured().
  FirstPosition<const c10::TensorImpl*> captured_known_;
  std::vector<Origin> arguments_;
  bool sets_grads_ = false;
};

}  // namespace remat
