// SPDX-License-Identifier: BSD-3-Clause

// Memory in a replay: its origins, and shadows of what the forward wrote outside.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/engine/byte_ranges.h>
#include <remat/engine/export.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_writer.h>
#include <remat/engine/region.h>
#include <remat/engine/storage_table.h>

namespace remat {

/// The beginning of messages about a replay; `slot` is the next slot to be filled.
inline std::string at_slot(const Region& region, size_t slot) {
  return c10::str("[replay] ", region.label(), ", slot ", slot);
}

/// The end of messages about a diverging replay.
inline constexpr const char* kMakeItDepend =
    " Make what the function does depend on its arguments, or keep the state that it reads with a "
    "StateHook (recompute_state_hooks in Python). REMAT_DEBUG=1 in the environment writes the ops "
    "of "
    "both with their source lines, and the first that differs, into ./remat-PID.diff.";

/// Note [Shadows]: a replay does not touch a storage from outside that the forward wrote. The
/// storage gets a shadow, which begins with the bytes from before the forward's first write. Op by
/// op, each tensor on the real storage is replaced by a tensor on the shadow. It is the same tensor
/// each time, because in-place ops change a tensor's position in the graph.
class REMAT_API ReplayMemory {
 public:
  /// Unpacks the old values of storages that the forward wrote, which may replay outer regions. So
  /// construct it before the replay's scope.
  explicit ReplayMemory(const Region& region);
  ReplayMemory(const ReplayMemory&) = delete;
  ReplayMemory& operator=(const ReplayMemory&) = delete;

  /// The origins of this replay's memory.
  StorageTable& storages() { return storages_; }

  /// The shadow for argument `i` of the region if the forward wrote it; else an empty storage.
  c10::Storage shadow_of_argument(size_t i) const;
  /// Enters `input`, the region's argument `i` in this replay; `moved` is its RegionInput::moved().
  void enter_argument(size_t i, const at::Tensor& input, int64_t moved);

  Origin origin_of(const at::Tensor& tensor) const { return origin_of(tensor, memory_of(tensor)); }
  /// Returns the tensor that ops get in place of `tensor`, and its origin. `tensor` is on `memory`.
  SeenTensor see(const at::Tensor& tensor, const void* memory);
  /// Returns the tensor that ops get in place of `tensor`.
  at::Tensor stand_in(const at::Tensor& tensor);
  /// Returns the shadow's gradient edge if `edge` is the gradient edge of the shadow's original;
  /// else `edge`.
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) const;
  bool has_shadow_in_graph() const;
  /// Replaces the op's arguments by their shadows. Returns true if any argument has a shadow.
  bool exchange(OpCall& call);
  /// Returns the original if `tensor` is its shadow; else `tensor`.
  const at::Tensor& original_of(const at::Tensor& tensor) const;

  /// Throws if the op needs memory of `tensor` that existed before the region and was freed since.
  /// Here and below, `slot` is the next slot to be filled, for messages.
  void check_not_freed(const OpCall& call, size_t argument, const at::Tensor& tensor,
                       size_t slot) const;
  /// Throws if the op reads `tensor`, of outside storage `number`, which changed since the forward.
  void check_read(const OpCall& call, const at::Tensor& tensor, size_t number, size_t slot);
  /// Checks all arguments with check_read(); also throws if the op reads parts of a shadow that are
  /// not kept, or writes what the forward has not written.
  void check_outside(const OpCall& call, size_t slot);

  /// The bytes of the shadow of outside storage `number`; undefined if there is no shadow.
  at::Tensor outside_bytes(size_t number) const;
  /// Call it when a skipped call has written outside storage `number`. Copies `value` into that
  /// storage's shadow.
  void put_outside(size_t number, const at::Tensor& value);

  /// False if all that is known of the tensor is that it was made inside.
  static bool is_known(Origin origin) {
    return !origin.is_inside() || origin.is_made() || origin.is_cast();
  }
  /// True if the saved `tensor` has the same origin as in the forward, as far as that is known.
  /// `is_saved_by_user`: a custom function saves the tensor.
  bool has_origin(const at::Tensor& tensor, Origin logged, bool is_saved_by_user);
  /// Notes that a view shows `memory`, whose origin is unknown.
  void note_viewed(const void* memory) { viewed_unknown_.push_back(memory); }
  /// See Origin::given().
  bool is_given(const at::Tensor& tensor) const { return storages_.is_given(tensor); }
  /// Number of bytes by which `tensor` begins earlier in its memory than in the forward. Hooks can
  /// move an argument.
  int64_t moved(const at::Tensor& tensor) const;
  /// True if `tensor` wraps memory that the forward wrapped, too. Such memory was not allocated by
  /// LibTorch (from_blob), and the forward's wrapper is gone.
  bool is_same_foreign_memory(size_t number, const at::Tensor& tensor);

 private:
  struct Outside {
    c10::Storage shadow;              // The bytes from before the forward's first write, if any.
    std::optional<ByteRanges> known;  // Readable bytes; all if unset.
    bool checked = false;
    bool is_wrapper_made_again = false;  // By a constructor in the replay: Note [Wrappers].
  };
  struct Shadow {
    at::Tensor original;  // Holding it reserves its address.
    at::Tensor tensor;
  };

  Origin origin_of(const at::Tensor& tensor, const void* memory) const;
  Origin enter_wrapper(const at::Tensor& wrapper);
  void enter_parts(const at::Tensor& input, size_t number);
  bool has_shadow(const at::Tensor& tensor, Origin origin) const;
  bool is_shadow(const at::Tensor& tensor, Origin origin) const;
  const at::Tensor& shadow_of(const at::Tensor& tensor, Origin origin);
  void check_known(const OpCall& call, size_t argument, const at::Tensor& tensor, size_t number,
                   size_t slot) const;
  void note_written(const OpCall& call);

  const Region& region_;
  StorageTable storages_;
  std::vector<Outside> outside_;  // By number of the outside storage.
  std::unordered_map<const c10::TensorImpl*, Shadow> tensors_;
  std::unordered_map<const c10::TensorImpl*, const Shadow*> by_shadow_;
  std::vector<const void*> viewed_unknown_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> matched_;  // To reserve their addresses.
  // Memory of arguments that hooks returned at another offset, and moved() of each.
  std::vector<std::pair<const void*, int64_t>> moved_;
};

}  // namespace remat
