// SPDX-License-Identifier: BSD-3-Clause

// Scopes of pairs of hooks, and what their pack is told.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <memory>
#include <utility>

#include <remat/tape/export.h>
#include <remat/tape/saved_tensors_pair.h>
#include <remat/tape/scope.h>

namespace remat {

/// While alive, what pack is given on this thread is what `info` says. Of remat's own.
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

/// As current_saved_tensor_info(); null outside of pack. Of remat's own.
REMAT_API const SavedTensorInfo* saved_tensor_info_in_pack();

/// True while a region keeps its arguments on this thread, by a guard. Of remat's own.
REMAT_API bool packs_region_input();

/// While alive, the tensor that pack is given next on this thread is an alias of `original`, which
/// must live on, or a copy of its bytes; as they are after the op that runs, if `after_op`. Of
/// remat's own.
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

/// The scope of a pair of hooks. A replay does not call them again: what it saves under them serves
/// only its own graph.
///
/// Note [Hooks inside a region]: a pair that the user opens in a region's function is for what the
/// region keeps, which is what SAVE calls keep that are made under it: see UserPair. All else is
/// the region's as without the pair: a slot.
class REMAT_API UserHooksScope final : public Scope {
 public:
  enum class Of : uint8_t {
    kUser,     ///< Opened by the user.
    kKeeping,  ///< For what a region keeps, wherever it is: what is saved is what is kept.
  };
  explicit UserHooksScope(std::shared_ptr<const SavedTensorsHooks> hooks, Of of = Of::kUser)
      : hooks_(std::move(hooks)), of_(of) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  bool is_user_hooks() const override { return true; }
  std::shared_ptr<const SavedTensorsHooks> opened_hooks() const override {
    return of_ == Of::kUser ? hooks_ : nullptr;
  }
  std::any capture_context() override;

  /// What `hooks` want to remember of this moment; nothing if they do not say.
  static std::any capture(const SavedTensorsHooks& hooks);

 private:
  std::shared_ptr<const SavedTensorsHooks> hooks_;
  Of of_;
};

}  // namespace remat
