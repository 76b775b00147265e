// SPDX-License-Identifier: BSD-3-Clause

// The original of a tensor that autograd saves, and tensors that are saved on behalf of remat.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace remat {

/// Returns the original of this thread's SavedOriginalGuard if `tensor` is an alias of it with the
/// same layout; else `tensor`. The alias lacks the original's version counter and graph.
const at::Tensor& saved_original(const at::Tensor& tensor);

/// Like saved_original(), but the alias may have any layout on the storage, because a kept result
/// of a SAVE call spans the whole storage.
const at::Tensor& original_on_storage(const at::Tensor& tensor);

struct CopiedOriginal {
  const at::Tensor& tensor;
  bool after_op;  ///< Copied after the running op, which outer scopes may not have seen yet.
};

/// The guard's original if `tensor` is a copy of the original or of all bytes of the original's
/// storage; else nullopt.
std::optional<CopiedOriginal> copied_original(const at::Tensor& tensor);

/// True while scopes of this thread are hidden (HiddenScopes). A tensor saved meanwhile is one that
/// a nested region or a SAVE call keeps with the user's hooks or an outer region, not one that an
/// op or a custom function saves.
bool saves_own();

/// True while this thread keeps a SAVE call's result for replays of its region.
bool packs_call_result();

}  // namespace remat
