// SPDX-License-Identifier: BSD-3-Clause

// The ops of a replay: compared with those of the forward, and kept from writing outside.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/tape/byte_ranges.h>
#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// Ends the messages about a replay that differs.
inline constexpr const char* kMakeItDepend =
    " Make what the function does depend on its arguments, or keep the state that it reads with a "
    "StateHook (recompute_state_hooks in Python).";

/// Note [Shadows]: a storage from outside that the forward wrote is not touched by a replay. It
/// gets a shadow, a storage that begins with the bytes from before the forward's first write; each
/// tensor that has the real storage is exchanged for one that has the shadow, op by op, and the
/// same one every time, since in-place ops change a tensor's place in the graph.
class ReplayOps {
 public:
  /// Unpacks the old values of what the forward wrote and what SAVE calls left, which may replay
  /// outer regions: make it before the scope of the replay. What the user has is asked for when a
  /// call is left out, with the state that the thread has now.
  explicit ReplayOps(const Region& region);

  /// The memory that argument `i` is to have if the forward wrote it, else none.
  c10::Storage shadow_of_argument(size_t i) const;

  /// `input`: the region's argument `i` for this replay; `moved`: RegionInput::moved() of it.
  void enter_argument(size_t i, const at::Tensor& input, int64_t moved);

  /// Exchanges arguments for their shadows, and compares the op with the forward's next one if
  /// `compared`. `slot`: the slot to be filled next, for messages.
  void before(OpCall& call, bool compared, size_t slot);
  void after(OpCall& call);
  void adopt(const at::Tensor& tensor) { storages_.enter_result(tensor); }

  /// What ops are given in place of `tensor`.
  at::Tensor stand_in(const at::Tensor& tensor);
  /// True unless all that is known of it is that it was made inside.
  static bool is_known(Origin origin) {
    return !origin.is_inside() || origin.is_made() || origin.is_cast();
  }
  /// True if `tensor`, which a custom function saves, has the origin that it had in the forward, as
  /// far as that is known.
  bool has_origin(const at::Tensor& tensor, Origin logged);
  /// See Origin::given().
  bool is_given(const at::Tensor& tensor) const { return storages_.is_given(tensor); }
  /// By how many bytes it begins earlier in its memory than in the forward: an argument that came
  /// back from hooks.
  int64_t moved(const at::Tensor& tensor) const;
  /// Where the gradient of a shadow goes if `edge` is where that of its original goes.
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) const;
  bool has_shadow_in_graph() const;

  /// The ops of the forward and those of this replay so far, each with where it comes from; empty
  /// if the region does not write that down.
  std::string op_lists() const;

  /// One past the last slot that this replay is to fill.
  size_t slot_end() const { return slot_end_; }

  /// How far the comparison has got in the forward's log.
  size_t position() const { return position_; }

  /// True if all ops of the forward have been compared: none follows.
  bool is_past_last_op() const {
    return !region_.ops().broken_off() && position_ == region_.ops().end();
  }

  /// Compares a named call with the forward's next op or call.
  void compare_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments, size_t slot);
  /// Throws ReplayMismatch: the forward's next call was `expected`, or null.
  [[noreturn]] void call_mismatch(const NamedCall* expected, const NamedCall& got,
                                  size_t slot) const;
  [[noreturn]] void call_missing(const NamedCall& expected, size_t slot) const;

  /// A result of a skipped call: on the value that is kept, or a placeholder.
  at::Tensor on_product(size_t number, const TensorLayout& layout);
  /// The shadow of what the forward wrote outside, as bytes; undefined if it has none.
  at::Tensor outside_bytes(size_t number) const;
  /// A skipped call has written the storage of an argument, or one from outside: puts the value
  /// there that is kept of it, if one is.
  void put_inside(const c10::Storage& storage, size_t product);
  void put_outside(size_t number, size_t product);

  // What write_op() and write_call() ask for.
  Origin origin_of(const at::Tensor& tensor) const;
  Origin look(const OpCall& call, size_t argument, const at::Tensor& tensor);
  void look_at_values(const OpCall& call, const at::Tensor& tensor, Origin origin);
  /// Once for each tensor that is written down.
  const at::Tensor& written_as(const at::Tensor& tensor, Origin origin);

 private:
  struct Outside {
    c10::Storage
        shadow;  // begins with its bytes from before the forward's first write, if it wrote
    std::optional<ByteRanges> known;  // what of it may be read; unset: all
    bool checked = false;
  };
  struct Product {
    CallProduct::Held held;   // of the user's, until it is asked for
    at::Tensor value;         // kept
    c10::Storage storage;     // what has its place in this replay
    bool unreadable = false;  // memory without its value
  };
  /// An argument that came back from hooks: it begins elsewhere in its memory.
  struct Moved {
    const void* memory;
    int64_t bytes;
  };
  struct Shadow {
    at::Tensor original;  // keeps its address
    at::Tensor tensor;
  };

  bool has_shadow(const at::Tensor& tensor, Origin origin) const;
  bool is_shadow(const at::Tensor& tensor, Origin origin) const;
  const at::Tensor& shadow_of(const at::Tensor& tensor, Origin origin);
  const at::Tensor& original_of(const at::Tensor& tensor) const;
  void exchange(OpCall& call);
  void check_outside(const OpCall& call, size_t slot);
  void check_known(const OpCall& call, size_t argument, const at::Tensor& tensor, size_t number,
                   size_t slot) const;
  void note_written(const OpCall& call);
  void check_not_freed(const OpCall& call, size_t argument, const at::Tensor& tensor,
                       size_t slot) const;
  void check_read(const OpCall& call, const at::Tensor& tensor, size_t number, size_t slot);
  void check_product(const OpCall& call, size_t argument, size_t number, size_t slot) const;
  void check_products(const OpCall& call, size_t slot) const;
  const NamedCall& call_of_product(size_t number) const;
  bool has_value(size_t number) const {
    return products_[number].held || products_[number].value.defined();
  }
  const at::Tensor& value_of(size_t number);
  at::Tensor unpack(size_t number, const CallProduct::Held& held) const;
  const NamedCall* call_at(size_t position) const;
  std::string where(size_t slot) const;
  void compare(size_t slot, const NamedCall* call);
  bool is_same_foreign_memory(size_t number, const c10::Storage& storage);
  [[noreturn]] void mismatch(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed,
                             size_t slot, const NamedCall* call) const;

  const Region& region_;
  const size_t slot_end_;
  StorageTable storages_;
  std::vector<Outside> outside_;                      // by number of the outside storage
  std::vector<Product> products_;                     // by number
  std::optional<at::ThreadLocalState> state_before_;  // if the user has any of them
  std::unordered_map<const c10::TensorImpl*, Shadow> tensors_;
  std::unordered_map<const c10::TensorImpl*, const Shadow*> by_shadow_;
  std::vector<const void*> viewed_unknown_;  // memory that a view of what nobody knows has shown
  std::vector<at::Tensor> opaque_;           // results of calls, so that their addresses stay taken
  struct Op {
    size_t slot = 0;  // the next one, for messages
    bool is_compared = false;
    bool is_cast = false;
    Origin made = Origin::inside();  // what it makes, if it is not compared
    bool touches_outside = false;
    bool touches_product = false;
    bool views_unknown = false;
    bool is_exchanged = false;  // an argument
  };
  Op op_;                              // that runs
  OpWords words_;                      // of it
  std::vector<c10::Storage> unknown_;  // of its tensors of unknown origin, in order
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> matched_;  // keep their addresses taken
  size_t position_ = 0;  // in the forward's log, in words
  size_t op_count_ = 0;
  std::vector<Moved> moved_;
  std::vector<std::string> seen_;  // with where they come from, if the region wants to know
};

}  // namespace remat
