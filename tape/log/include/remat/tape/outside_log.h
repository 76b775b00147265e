// SPDX-License-Identifier: BSD-3-Clause

// The storages from outside that a region's ops touch: their versions, and old values of those
// it writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/byte_ranges.h>
#include <remat/tape/export.h>
#include <remat/tape/first_position.h>
#include <remat/tape/graph_place.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/inner_versions.h>
#include <remat/tape/op_log.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

/// What to do about modules whose weights are gathered in the region.
inline constexpr const char* kCheckpointInside =
    "Put the checkpoint inside the sharded module (wrap the block first, then shard it), or free "
    "and fill memory outside of the region.";

/// A storage that existed when the region met it for the first time, or a tensor without storage.
/// Holds it weakly. A large class: each member is one thing that the forward finds out about it.
class REMAT_API OutsideStorage {
 public:
  explicit OutsideStorage(const at::Tensor& tensor);

  /// The tensor by which the region met it; expired if nobody has that any more.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  const WeakTensor& first_tensor() const { return tensor_; }

  /// Its identity; the address stays taken while this object lives, also if the storage is gone.
  const void* address() const { return address_; }

  /// False for a tensor without storage, of which no copy can be kept.
  bool has_storage() const { return storage_.has_value(); }

  /// False if somebody has given the tensor by which the region met it another .grad since.
  bool has_first_grad() const;

  /// An op reads the data of `tensor`, which has this storage.
  void mark_read(const at::Tensor& tensor);
  bool is_read() const { return read_; }

  /// A collective writes it: from then on it is no weight, but one that FSDP gathers.
  void mark_received() { received_ = true; }
  bool is_received() const { return received_; }

  /// Throws NotImplementedError, with `where`, if its storage has another size than it had when the
  /// region met it, and nobody has said that it is gathered.
  void check_size(c10::function_ref<std::string()> where) const;

  /// See Note [Gathered memory].
  bool is_gathered() const;
  /// Has its memory gathered if that is freed now.
  void gather_again() const;

  /// It holds a cast that a replay makes again: see Note [Casts that a cache answers].
  void mark_cast(Origin cast) { cast_ = cast; }
  bool is_cast() const { return cast_.has_value(); }
  /// What a replay takes it for.
  const std::optional<Origin>& cast() const { return cast_; }

  /// It is an argument of the region: number `i`, with all bytes of it if `is_whole`.
  void mark_argument(size_t i, bool is_whole) {
    is_argument_ = true;
    if (is_whole && !whole_argument_) whole_argument_ = i;
  }
  bool is_argument() const { return is_argument_; }
  /// The first argument that has all its bytes.
  std::optional<size_t> whole_argument() const { return whole_argument_; }

  /// The region is about to write `tensor`, for the first time. See Note [What a write keeps].
  void begin_write(const at::Tensor& tensor);
  bool is_written() const { return written_ != nullptr; }

  /// Of one that is written: the part to keep before an op reads `tensor`; none if all of its
  /// bytes are known to replays.
  std::optional<TensorLayout> part_to_keep(const at::Tensor& tensor) const;
  /// What the region read before it wrote; none if nothing.
  std::optional<TensorLayout> part_read() const;
  /// All of it.
  TensorLayout whole() const;

  /// Keeps a copy of that part as it is now. What an outer region saves decides where the copy
  /// lives.
  void keep(const c10::Storage& storage, const TensorLayout& part);
  /// A replay makes these bytes again before it reads them; all bytes.
  void cover(const at::Tensor& tensor);
  void cover_all();

  /// No replay reads any of it: lets go of what is kept.
  void drop_kept();

  /// Where `tensor` stood in the graph before the region's first write, if that was a write to it
  /// or a view of it; else null.
  const GraphPlace* place_before_write(const at::Tensor& tensor) const;

  /// Shows what is kept, and which part it is.
  void visit_kept(c10::function_ref<void(const TensorLayout&, const HeldStorage&)> visit) const;

  /// The kept parts in a storage of its size, as bytes; undefined if the region wrote none. May
  /// replay outer regions.
  at::Tensor unpack_kept() const;
  /// True if that makes memory of its own. What it finds whole may be the user's: hooks may return
  /// the same tensor each time.
  bool unpacks_afresh() const;
  /// True if that is the very copy that is kept, not to be written.
  bool is_kept_copy(const at::Tensor& unpacked) const;
  /// The bytes in it that replays may read before they write them; null if all.
  const ByteRanges* known() const;

  /// `bytes`: a copy of all bytes, from before a write that this region did not do. Kept for its
  /// replays. See Note [Writes after the region].
  void hand_over(std::shared_ptr<const at::Tensor> bytes) const;
  std::shared_ptr<const at::Tensor> handed_over() const;

  /// It is about to be written by way of a tensor that has other versions. From any thread.
  void mark_written_by_alias() const;

  /// True if it was written since the region met it, as far as versions tell.
  bool changed() const { return version_.changed(); }
  /// True if `tensor`, which has this storage, was written without a new version since.
  bool has_other_bytes(const at::Tensor& tensor) const { return version_.has_other_bytes(tensor); }
  /// True if writes to `tensor`, which has this storage, have its versions.
  bool has_versions_of(const at::Tensor& tensor) const { return version_.is_of(tensor); }

  /// Throws autograd's in-place error, with `where`, if `tensor`, which has this storage,
  /// was written since.
  void check_unchanged(const at::Tensor& tensor, c10::function_ref<std::string()> where) const;

  /// The same of the tensors in `tensor`, if it is one of a Python class of its own.
  void check_inner(const at::Tensor& tensor, bool may_be_copy,
                   c10::function_ref<std::string()> where) const;

  /// What it consisted of when the region met it; null for all but tensors of Python classes.
  const InnerVersions* inner() const { return inner_.get(); }

  /// True if it is a tensor of a Python class that had these memories (InnerVersions::memories())
  /// when the region met it.
  bool consists_of(c10::ArrayRef<const void*> memories) const {
    return inner_ && inner_->have(memories);
  }

  /// True if the tensor by which the region met it has other memory now.
  bool is_exchanged() const;

  /// True if nobody has its memory any more.
  bool is_gone() const { return storage_ && storage_->expired(); }

  /// Its memory did not come from LibTorch's allocator.
  bool is_foreign() const { return is_foreign_; }

  /// is_gone() of such memory.
  bool is_gone_foreign_memory() const { return is_foreign_ && is_gone(); }

  /// False if it has no version that tells of writes (an inference tensor, or memory that did not
  /// come from LibTorch's allocator), and `storage` has other bytes than it had at first. Not asked
  /// of leaves that require grad, of devices, and of more than kMaxCompared bytes.
  bool has_bytes_of(const c10::Storage& storage) const;
  static constexpr size_t kMaxCompared = size_t{1} << 20U;

  /// A custom function saves it, and no op has read it: notes its bytes if it is no argument.
  void note_saved(const c10::Storage& storage);
  /// False if `storage` has other bytes than were saved then, as far as these are compared.
  bool may_be_saved(const c10::Storage& storage) const;

  const TensorMeta& meta() const { return meta_; }

 private:
  void cover(const TensorLayout& layout);
  bool is_kept_whole() const;

  const void* address_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  WeakTensor tensor_;
  const c10::TensorImpl* grad_;  // of that one; not to be looked into
  TensorMeta meta_;
  SavedVersion version_;
  std::unique_ptr<const InnerVersions> inner_;  // of a tensor of a Python class
  size_t size_bytes_ = 0;
  uint32_t shard_version_ = 0;  // of gathered memory
  bool is_foreign_ = false;
  uint64_t hash_ = 0;         // of its bytes, if they are compared
  uint64_t saved_bytes_ = 0;  // likewise
  bool read_ = false;
  std::optional<Origin> cast_;
  bool received_ = false;
  bool is_argument_ = false;
  std::optional<size_t> whole_argument_;
  ByteRange read_bytes_{~size_t{0}, 0};  // before the first write: all of them are in it
  struct Written;
  std::shared_ptr<Written> written_;                       // from the first write on
  mutable std::shared_ptr<const at::Tensor> handed_over_;  // by atomic loads and stores
  mutable bool written_by_alias_ = false;                  // the same
};

/// All of them, in the order of their first use: the arguments of the region first.
class REMAT_API OutsideLog {
 public:
  Origin add(const at::Tensor& tensor);

  /// `origin` is that of argument number arguments().size(). `is_whole`: the argument has all bytes
  /// of its storage.
  void add_argument(Origin origin, bool is_whole) {
    if (origin.is_outside()) storages_[origin.number()].mark_argument(arguments_.size(), is_whole);
    arguments_.push_back(origin);
  }
  c10::ArrayRef<Origin> arguments() const { return arguments_; }

  /// Another tensor from outside: with a storage that is known by another one, or in a SAVE call.
  void add_captured(const at::Tensor& tensor);

  /// The tensors by which the region met them, arguments too, that are alive and require grad now.
  std::vector<at::Tensor> captured() const;

  /// The function has returned: notes whether it has set a .grad of these.
  void finish();
  bool sets_grads() const { return sets_grads_; }

  /// What to write down of a tensor of this origin.
  Origin logged(Origin origin) const {
    if (origin.is_unwritten()) return Origin::inside();
    if (!origin.is_outside()) return origin;
    return storages_[origin.number()].cast().value_or(origin);
  }

  /// The storage with that address; kUnknown if none was met.
  Origin find(const void* address) const;
  /// Of the tensor of a Python class that consists of these memories; kUnknown if none was met.
  Origin find_wrapper(c10::ArrayRef<const void*> memories) const;

  /// OutsideStorage::gather_again() of all, in the order of their first use.
  void gather_again() const;

  size_t size() const { return storages_.size(); }
  OutsideStorage& operator[](size_t number) { return storages_[number]; }
  const OutsideStorage& operator[](size_t number) const { return storages_[number]; }

 private:
  std::vector<OutsideStorage> storages_;
  std::vector<OutsideStorage::WeakTensor> captured_;  // not the first ones of their storages
  FirstPosition<const c10::TensorImpl*> captured_known_;
  std::vector<Origin> arguments_;
  bool sets_grads_ = false;
};

}  // namespace remat
