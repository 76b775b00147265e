// SPDX-License-Identifier: BSD-3-Clause

// The named calls of a region's forward in order, and what is kept for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <any>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/named_call.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

/// The reason why a SAVE call's result is kept.
struct KeepReason {
  enum class Kind : uint8_t {
    kNone,      ///< The result is not kept.
    kBareRead,  ///< A bare op reads the result.
    kCallRead,  ///< An op of a RECOMPUTE call reads the result.
    kNeeded,    ///< recompute_needs_tensor(), or a use that a placeholder cannot serve.
  };
  Kind kind = Kind::kNone;
  std::string reader{};  ///< Name of the op that reads the result; empty for kNeeded.
  size_t slot = 0;       ///< See CallProduct::reader_slot().
};

/// A product: a storage that a SAVE call made or wrote, as the call left it. A replay uses a
/// placeholder instead, unless code that the replay runs reads the product.
///
/// Note [Products]: several calls may write a storage; each leaves a product of its own. If the
/// call made the storage, the value is kept in that very storage until code that a replay runs
/// writes there. From then on a copy from before the write is kept, and each replay gets a copy of
/// that copy. If the call wrote an older storage, a copy is kept at once.
class REMAT_API CallProduct {
 public:
  /// Product of a storage that the call made; `tensor` is a result on it.
  CallProduct(size_t call, const at::Tensor& tensor);
  /// Product of a storage that the call wrote; `tensor` is on it.
  static CallProduct written(size_t call, const at::Tensor& tensor);

  size_t call() const { return call_; }
  bool is_written() const { return is_written_; }
  size_t size_bytes() const { return size_bytes_; }
  c10::Device device() const { return meta_.device(); }
  const TensorMeta& meta() const { return meta_; }

  /// Call it when slot `slot` is about to hold the product. If the product is kept, replays that
  /// fill this slot need its value, because a nested region may have the slot's tensor as an
  /// argument and read it.
  void mark_in_slot(size_t slot) { first_slot_ = std::min(first_slot_, slot); }

  /// Keeps the value of the storage of `tensor`; the thread's scopes decide where.
  void keep(const at::Tensor& tensor, KeepReason reason, size_t reader_slot);
  /// Call it before code that a replay runs writes `tensor`, which is kept. Keeps a copy instead.
  void keep_copy(const at::Tensor& tensor);
  bool is_kept() const { return kept_.held != nullptr; }
  /// True if replays get a copy that they may write.
  bool is_copied() const { return kept_.is_copied; }
  /// Shared owner of the value during one replay; null if nothing is kept.
  using Held = std::shared_ptr<const torch::autograd::SavedVariable>;
  const Held& held() const { return kept_.held; }
  /// Gives up the kept value; the caller destroys it.
  Held release() noexcept { return std::exchange(kept_.held, nullptr); }

  const KeepReason& reason() const { return reason_; }
  /// Sets whether the value is with user hooks. If so, a replay unpacks it only while the function
  /// runs, because the function may have to prepare the hooks first.
  void set_is_with_user(bool is) { is_with_user_ = is; }
  bool is_with_user() const { return is_with_user_; }

  /// Number of slots when the product was first read, or the index of an earlier slot that holds
  /// the product. A replay that stops before this slot does not need the product.
  size_t reader_slot() const { return reason_.slot; }

  /// Notes that replays need memory for the product even if its value is not needed, because a
  /// later call's value goes there.
  void mark_memory_needed() { needs_memory_ = true; }
  bool needs_memory() const { return needs_memory_; }

  /// Makes the present version of `tensor`, which is on the storage, the kept version.
  void expect_version(const at::Tensor& tensor) {
    if (kept_.version) kept_.version.emplace(tensor);
  }

  /// Returns a tensor on the kept storage, or on a copy of it. May replay outer regions. Throws
  /// autograd's in-place error, with `where`, if the storage was written after the region.
  at::Tensor unpack(const Held& held, c10::function_ref<std::string()> where) const;
  /// Like unpack(), but returns a tensor on the kept memory itself, which must not be written.
  at::Tensor unpack_to_read(const Held& held, c10::function_ref<std::string()> where) const;

  /// True if the call returned a view of a parameter, whose memory stays alive anyway.
  bool is_of_parameter() const { return is_of_parameter_ && !kept_.is_copied; }

  /// True for a tensor that is not described by a storage (sparse, quantized); unpack() returns the
  /// tensor itself.
  bool is_opaque() const { return is_opaque_; }

  /// The storage that holds the kept value.
  const HeldStorage& storage() const { return kept_.is_copied ? kept_.copy : storage_; }

  /// The address of the storage that the call made or wrote; null after forget_storage().
  const void* made_storage() const { return storage_.address(); }

  /// Forgets the storage, so that its address can be reused.
  void forget_storage() { storage_ = {}; }

 private:
  CallProduct(size_t call, const at::Tensor& tensor, bool is_written);

  struct Value {
    bool is_copied = false;
    TensorLayout layout{};
    HeldStorage copy{};  // Set if is_copied.
    std::optional<SavedVersion> version{};
    Held held{};
  };

  size_t call_;
  bool is_written_;
  bool is_opaque_;
  bool is_of_parameter_;
  bool needs_memory_ = false;
  bool is_with_user_ = false;
  size_t size_bytes_ = 0;
  size_t first_slot_ = ~size_t{0};
  TensorMeta meta_;
  KeepReason reason_;
  HeldStorage storage_;
  Value kept_;
};

/// A tensor on the storage of an argument of a call.
struct REMAT_API ArgumentView {
  ArgumentView() = default;
  ArgumentView(size_t number, const at::Tensor& argument, const at::Tensor& view);

  /// Throws ValueError, with `where`, if the layout of `argument` differs from the forward's.
  void check(const at::Tensor& argument, c10::function_ref<std::string()> where) const;

  /// Returns the same view of the storage of `argument`, outside any graph.
  at::Tensor of(const at::Tensor& argument) const;

  /// The layout of the view on the storage of `argument`.
  TensorLayout layout_on(const at::Tensor& argument) const;

  size_t argument = 0;
  bool is_whole = true;  ///< True if the view is the argument itself, with its own layout.
  TensorLayout layout;   ///< Layout of the view, if it is not whole.
  TensorLayout base;     ///< Layout of the argument in the forward, if the view is not whole.
};

/// How a replay makes a result of a SAVE call.
struct CallOutput {
  enum class Source : uint8_t {
    kUndefined,
    kProduct,   ///< A tensor on the storage of a product.
    kArgument,  ///< The argument itself, or another tensor on its storage.
  };
  Source source = Source::kUndefined;
  bool is_argument_itself = false;
  bool requires_grad = false;
  bool is_view = false;   ///< A view of the argument for autograd; false for a detached tensor.
  bool has_node = false;  ///< False for a view made with grad mode off.
  size_t product = 0;
  size_t same_as = 0;   ///< Position of the first result that is the same tensor.
  TensorLayout layout;  ///< Set for kProduct: the layout on the product's storage.
  ArgumentView view;    ///< Set for kArgument.
};

/// A write by a SAVE call to a tensor that existed before the call.
struct CallWrite {
  size_t product;
  bool is_outside;
  size_t number;       ///< Number of the outside storage, if is_outside.
  size_t argument;     ///< Position of the argument on that storage; past the last if captured.
  bool requires_grad;  ///< Whether the argument requires grad after the call.
};

/// A tensor that autograd saved in a SAVE call and that is kept.
struct KeptTensor {
  KeptTensor(size_t call_index, std::string tensor_name, const at::Tensor& of);

  static constexpr size_t kNoCall = ~size_t{0};

  size_t call;
  size_t maker = kNoCall;  ///< Earlier SAVE call that made the tensor. kNoCall if `call`, or code
                           ///< that a replay runs again, made it.
  std::string name;        ///< "saved.0", or the name that the call's function gave.
  TensorMeta meta;
  std::optional<SavedVersion> version;  ///< Set once the tensor is packed.
  std::optional<TensorLayout> layout;   ///< Unset for a tensor that no storage describes.
  HeldStorage storage;
  const c10::TensorImpl* tensor;  ///< Only an identity: the address may be reused.
  bool is_parameter;
  c10::SmallVector<uint32_t, 1> results;  ///< Positions of the call's results that are this tensor.
  std::atomic<bool> live{true};
};

/// One named call of the forward.
struct CallRecord {
  NamedCall call;
  bool threw = false;
  bool ended = false;  ///< True once a SAVE call has returned. Before, a replay may run inside it.
  size_t log_position = 0;  ///< Position in the region's OpLog.
  size_t first_slot = 0;
  /// One per slot, beginning with first_slot. These slots are for tensors that autograd saved in
  /// the call and that are not kept, because a replay fills the slots from the call's arguments.
  std::vector<ArgumentView> refills;
  c10::SmallVector<CallOutput, 1> outputs;
  std::shared_ptr<const void> holder;  ///< See CallResults.
  std::vector<CallWrite> writes;
  std::vector<GeneratorState> generators;  ///< States after the call, if it drew from them.
  std::vector<std::any> states;            ///< User state after the call, one per StateHook.
};

/// All named calls of one forward. Owned by the region; the forward's thread fills it, then any
/// thread may read it.
class REMAT_API CallLog {
 public:
  CallRecord& add(const NamedCall& call);
  const std::deque<CallRecord>& records() const { return records_; }

  size_t add_product(CallProduct product);
  CallProduct& product(size_t number) { return products_[number]; }
  const CallProduct& product(size_t number) const { return products_[number]; }
  const std::deque<CallProduct>& products() const { return products_; }

  KeptTensor& add_kept(size_t call, std::string name, const at::Tensor& tensor) {
    return kept_.emplace_back(call, std::move(name), tensor);
  }
  const std::deque<KeptTensor>& kept() const { return kept_; }

  /// Fills KeptTensor::results for the newest call's kept tensors. Call it when the call has
  /// returned and its results are known. The second overload is for one tensor that autograd saves
  /// after its call has returned.
  void find_results();
  void find_results(KeptTensor& kept) const;

  /// Call it when the forward has ended. Drops what replays of slots below `slot_end` do not read.
  void finish(size_t slot_end);

  /// True if values are kept that replays read.
  bool keeps_for_replays() const { return !by_reader_.empty(); }

  /// Gives up the values that no replay reads if only the slots below `slot_end` are live.
  std::vector<CallProduct::Held> release_from(size_t slot_end);

 private:
  std::deque<CallRecord> records_;
  std::deque<CallProduct> products_;
  std::deque<KeptTensor> kept_;
  std::vector<size_t> by_reader_;  // Kept products in order of first read; set by finish().
};

}  // namespace remat
