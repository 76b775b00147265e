// SPDX-License-Identifier: BSD-3-Clause

// The storages from outside that a region's ops touch: their versions, and old values of those
// it writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/graph_place.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/op_log.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

/// A storage that existed when the region met it for the first time, or a tensor without storage.
/// Holds it weakly.
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

  /// An op reads its data.
  void mark_read() { read_ = true; }
  bool is_read() const { return read_; }

  /// It holds a cast that a replay makes again: see Note [Casts that a cache answers].
  void mark_cast() { cast_ = true; }
  bool is_cast() const { return cast_; }

  /// Keeps a copy of all its bytes, once: an op is about to write it. What an outer region saves
  /// decides where the copy lives.
  void keep_before_write(const at::Tensor& tensor);
  bool is_written() const { return kept_.has_value(); }

  /// Where `tensor` stood in the graph before the region's first write, if that was a write to it
  /// or a view of it; else null.
  const GraphPlace* place_before_write(const at::Tensor& tensor) const;

  /// The storage of that copy.
  const HeldStorage& kept_storage() const { return kept_storage_; }

  /// The bytes from before the region's first write; undefined if it wrote none. May replay outer
  /// regions.
  at::Tensor unpack_kept() const;

  /// Throws autograd's in-place error, with `where`, if `tensor`, which has this storage,
  /// was written since.
  void check_unchanged(const at::Tensor& tensor, c10::function_ref<std::string()> where) const;

  /// True if its memory did not come from LibTorch's allocator and nobody has it any more.
  bool is_gone_foreign_memory() const { return is_foreign_ && storage_->expired(); }

  /// False if its memory did not come from LibTorch's allocator, so that it has no version that
  /// tells of writes, and `storage` has other bytes than it had at first. Not asked of leaves that
  /// require grad, of devices, and of more than kMaxCompared bytes.
  bool has_bytes_of(const c10::Storage& storage) const;
  static constexpr size_t kMaxCompared = size_t{1} << 20U;

  const TensorMeta& meta() const { return meta_; }

 private:
  const void* address_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  WeakTensor tensor_;
  TensorMeta meta_;
  SavedVersion version_;
  bool is_foreign_ = false;
  uint64_t hash_ = 0;  // of its bytes, if they are compared
  bool read_ = false;
  bool cast_ = false;
  std::optional<torch::autograd::SavedVariable> kept_;
  HeldStorage kept_storage_;
  std::optional<WeakTensor> written_;
  GraphPlace place_;  // of that one
};

/// All of them, in the order of their first use: the arguments of the region first.
class REMAT_API OutsideLog {
 public:
  Origin add(const at::Tensor& tensor);

  /// `origin` is that of argument number arguments().size(). `is_whole`: the argument has all bytes
  /// of its storage.
  void add_argument(Origin origin, bool is_whole) {
    arguments_.push_back(origin);
    whole_.push_back(is_whole);
  }
  c10::ArrayRef<Origin> arguments() const { return arguments_; }

  /// True if it is the origin of an argument.
  bool is_argument(Origin origin) const;

  /// The first argument that has all bytes of the storage; none if there is no such argument.
  std::optional<size_t> whole_argument(size_t number) const;

  /// True if the region has written argument `i`.
  bool writes_argument(size_t i) const;

  /// Another tensor from outside: with a storage that is known by another one, or in a SAVE call.
  void add_captured(const at::Tensor& tensor);

  /// The tensors by which the region met them, arguments too, that are alive and require grad now.
  std::vector<at::Tensor> captured() const;

  /// What to write down of a tensor of this origin.
  Origin logged(Origin origin) const {
    return origin.is_outside() && storages_[origin.number()].is_cast() ? Origin::inside() : origin;
  }

  size_t size() const { return storages_.size(); }
  OutsideStorage& operator[](size_t number) { return storages_[number]; }
  const OutsideStorage& operator[](size_t number) const { return storages_[number]; }

 private:
  std::vector<OutsideStorage> storages_;
  std::vector<OutsideStorage::WeakTensor> captured_;  // not the first ones of their storages
  std::vector<Origin> arguments_;
  std::vector<bool> whole_;
};

}  // namespace remat
