// SPDX-License-Identifier: BSD-3-Clause

// Pairs of functions that decide how autograd keeps a saved tensor:
// torch.autograd.graph.saved_tensors_hooks for C++.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <remat/tape/export.h>
#include <remat/tape/scope.h>

namespace remat {

/// What a tensor is that hooks are given.
enum class SavedTensorKind : uint8_t {
  kCheckpointInput,  ///< A tensor argument of a region.
  kBackward,         ///< Saved by autograd: outside of regions, or in a SAVE call.
  kSaveOutput,       ///< A result of a SAVE call that code outside of the call reads.
};

struct SavedTensorInfo {
  SavedTensorKind kind = SavedTensorKind::kBackward;
  std::string region;  ///< The region's name; empty outside of regions and for one without a name.
  std::string call;    ///< The SAVE call; empty for a region's arguments.
  std::any context;    ///< What capture_context returned; empty without one.
  /// The tensor that is saved, of which pack gets a detached alias. Valid during pack.
  const at::Tensor* original = nullptr;
};

/// What the tensor is that pack has been given. Throws outside of pack. On the thread of pack.
REMAT_API const SavedTensorInfo& current_saved_tensor_info();

/// `pack` gets each tensor that autograd saves (detached, sharing its data) and returns what to
/// keep instead; `unpack` gets that back and returns the tensor: same shape, dtype and device, else
/// an error names both. Both run with gradients off unless backward builds a graph, and without any
/// region active; `unpack` may run on another thread, and more than once.
struct SavedTensorsHooks {
  std::function<std::any(const at::Tensor&)> pack;
  std::function<at::Tensor(const std::any&)> unpack;
  /// Called in or around regions, where a tensor is made: when a region begins, when a SAVE call
  /// saves a tensor, when it ends. current_saved_tensor_info() has what it returned. May be empty.
  std::function<std::any()> capture_context{};
};

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

/// Checks that both functions are there. Throws ValueError that begins with `where`.
REMAT_API void check_saved_tensors_hooks(const SavedTensorsHooks& hooks, const char* where);

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
