// SPDX-License-Identifier: BSD-3-Clause

// Scopes of hook pairs, and the information that pack functions can query.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SafePyObject.h>

#include <any>
#include <cstdint>
#include <memory>
#include <utility>

#include <remat/engine/export.h>
#include <remat/engine/saved_tensors_pair.h>
#include <remat/engine/scope.h>

namespace remat {

/// While alive, `info` describes the tensors passed to pack on this thread. For remat's own use.
class REMAT_API SavedTensorInfoGuard {
 public:
  explicit SavedTensorInfoGuard(SavedTensorInfo info);
  SavedTensorInfoGuard(const SavedTensorInfoGuard&) = delete;
  SavedTensorInfoGuard& operator=(const SavedTensorInfoGuard&) = delete;
  ~SavedTensorInfoGuard();

 private:
  SavedTensorInfo info_;
  const SavedTensorInfo* outer_;
};

/// Like current_saved_tensor_info(), but null outside pack. For remat's own use.
REMAT_API const SavedTensorInfo* saved_tensor_info_in_pack();

/// True while this thread's SavedTensorInfoGuard describes an argument of a region. For remat's own
/// use.
REMAT_API bool packs_region_input();

/// While alive, tells pack that the next tensor passed to it on this thread is an alias of
/// `original` or a copy of its bytes. `after_op`: the current op had its results when
/// the copy was made.
/// `original` must outlive the guard. For remat's own use.
class REMAT_API SavedOriginalGuard {
 public:
  explicit SavedOriginalGuard(const at::Tensor& original, bool after_op = false);
  SavedOriginalGuard(const SavedOriginalGuard&) = delete;
  SavedOriginalGuard& operator=(const SavedOriginalGuard&) = delete;
  ~SavedOriginalGuard();

 private:
  const at::Tensor* outer_;
  bool outer_after_op_;
};

/// The scope of a pair of hooks. A replay does not call the hooks again, because tensors that a
/// replay saves under them serve only the replay's own graph.
///
/// Note [Hooks inside a region]: a pair that the user opens in a region's function gets only those
/// tensors that named SAVE calls under the pair keep: see UserPair. All other saved tensors become
/// slots of the region, as without the pair.
class REMAT_API UserHooksScope final : public Scope {
 public:
  enum class Of : uint8_t {
    kUser,     ///< Opened by the user.
    kKeeping,  ///< Opened by remat; gets all tensors saved in it, which the region keeps.
  };
  explicit UserHooksScope(std::shared_ptr<const SavedTensorsHooks> hooks, Of of = Of::kUser)
      : hooks_(std::move(hooks)), of_(of) {
    set_parts({.user_hooks = this});
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  /// The pair of hooks if the user has opened this scope; else null.
  std::shared_ptr<const SavedTensorsHooks> opened_hooks() const {
    return of_ == Of::kUser ? hooks_ : nullptr;
  }
  std::any capture_context() override;

  /// Calls capture_context of `hooks`. Returns an empty result if `hooks` has no such function.
  static std::any capture(const SavedTensorsHooks& hooks);

 private:
  std::shared_ptr<const SavedTensorsHooks> hooks_;
  Of of_;
};

/// True if `pack` belongs to a pair that keeps nothing and runs code again to unpack.
///
/// Note [Checkpoints of PyTorch inside a region]: torch.utils.checkpoint uses such pairs. Its hooks
/// count the tensors that they pack, and recompute them. A region around such a checkpoint does not
/// interfere, so side effects are those of plain code (batch norm's statistics are written twice).
/// The hooks get no tensor that SAVE calls keep, because their own recomputation would not give
/// them that tensor again, and their counts would differ.
using RecomputingPair = bool (*)(const c10::SafePyObject& pack);

/// Sets the function that is_recomputing_pair() asks; null, the default, recognises no pair. Usable
/// from any thread, before the first region.
REMAT_API void set_recomputing_pair(RecomputingPair test);

REMAT_API bool is_recomputing_pair(const c10::SafePyObject& pack);

}  // namespace remat
