// SPDX-License-Identifier: BSD-3-Clause

// Memory in a replay: where it comes from, and shadows of what the forward wrote outside.
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

#include <remat/tape/byte_ranges.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>

#include "op_writer.h"

namespace remat {

/// Begins messages about a replay: `slot` is to be filled next.
inline std::string at_slot(const Region& region, size_t slot) {
  return c10::str("[replay] ", region.label(), ", slot ", slot);
}

/// Ends the messages about a replay that differs.
inline constexpr const char* kMakeItDepend =
    " Make what the function does depend on its arguments, or keep the state that it reads with a "
    "StateHook (recompute_state_hooks in Python). REMAT_DEBUG=1 in the environment writes the ops "
    "of "
    "both with their source lines, and the first that differs, into ./remat-PID.diff.";

/// Note [Shadows]: a storage from outside that the forward wrote is not touched by a replay. It
/// gets a shadow, a storage that begins with the bytes from before the forward's first write; each
/// tensor that has the real storage is exchanged for one that has the shadow, op by op, and the
/// same one every time, since in-place ops change a tensor's place in the graph.
class ReplayMemory {
 public:
  /// Unpacks the old values of what the forward wrote, which may replay outer regions: make it
  /// before the scope of the replay.
  explicit ReplayMemory(const Region& region);
  ReplayMemory(const ReplayMemory&) = delete;
  ReplayMemory& operator=(const ReplayMemory&) = delete;

  /// Where the memory of this replay comes from.
  StorageTable& storages() { return storages_; }

  /// The memory that argument `i` of the region is to have if the forward wrote it, else none.
  c10::Storage shadow_of_argument(size_t i) const;
  /// `input`: the region's argument `i` for this replay; `moved`: RegionInput::moved() of it.
  void enter_argument(size_t i, const at::Tensor& input, int64_t moved);

  Origin origin_of(const at::Tensor& tensor) const { return origin_of(tensor, memory_of(tensor)); }
  /// What ops are given in place of `tensor`, whose memory is `memory`, and what is known of it.
  SeenTensor see(const at::Tensor& tensor, const void* memory);
  /// What ops are given in place of `tensor`.
  at::Tensor stand_in(const at::Tensor& tensor);
  /// Where the gradient of a shadow goes if `edge` is where that of its original goes.
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) const;
  bool has_shadow_in_graph() const;
  /// Puts shadows in the place of the op's arguments that have one. True if any has.
  bool exchange(OpCall& call);
  /// What the function knows, if `tensor` is its shadow.
  const at::Tensor& original_of(const at::Tensor& tensor) const;

  /// Throws if the op needs memory of `tensor` that the region has found, and that was freed since.
  /// `slot`: the slot to be filled next, for messages, as everywhere here.
  void check_not_freed(const OpCall& call, size_t argument, const at::Tensor& tensor,
                       size_t slot) const;
  /// Throws if the op reads a tensor from outside that has changed since the forward.
  void check_read(const OpCall& call, const at::Tensor& tensor, size_t number, size_t slot);
  /// The same of all arguments of the op; and if it reads parts of a shadow of which nothing is
  /// kept, or writes what the forward has not written.
  void check_outside(const OpCall& call, size_t slot);

  /// The shadow of what the forward wrote outside, as bytes; undefined if it has none.
  at::Tensor outside_bytes(size_t number) const;
  /// A call that was left out has written that: `value` goes into the shadow.
  void put_outside(size_t number, const at::Tensor& value);

  /// True unless all that is known of it is that it was made inside.
  static bool is_known(Origin origin) {
    return !origin.is_inside() || origin.is_made() || origin.is_cast();
  }
  /// True if `tensor`, which is saved, has the origin that it had in the forward, as far as that is
  /// known. `is_saved_by_user`: by a custom function.
  bool has_origin(const at::Tensor& tensor, Origin logged, bool is_saved_by_user);
  /// A view shows `memory`, of which nobody knows where it comes from.
  void note_viewed(const void* memory) { viewed_unknown_.push_back(memory); }
  /// See Origin::given().
  bool is_given(const at::Tensor& tensor) const { return storages_.is_given(tensor); }
  /// By how many bytes it begins earlier in its memory than in the forward: an argument that came
  /// back from hooks.
  int64_t moved(const at::Tensor& tensor) const;
  /// Memory that no op of LibTorch allocated (from_blob) may have been wrapped in the forward, and
  /// again now; if so, the forward's is gone.
  bool is_same_foreign_memory(size_t number, const at::Tensor& tensor);

 private:
  struct Outside {
    c10::Storage
        shadow;  // begins with its bytes from before the forward's first write, if it wrote
    std::optional<ByteRanges> known;  // what of it may be read; unset: all
    bool checked = false;
    bool is_wrapper_made_again = false;  // by a constructor: Note [Wrappers]
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
  std::vector<Outside> outside_;  // by number of the outside storage
  std::unordered_map<const c10::TensorImpl*, Shadow> tensors_;
  std::unordered_map<const c10::TensorImpl*, const Shadow*> by_shadow_;
  std::vector<const void*> viewed_unknown_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> matched_;  // keep their addresses taken
  std::vector<Moved> moved_;
};

}  // namespace remat
