// SPDX-License-Identifier: BSD-3-Clause

// Pushing user hooks on the thread's stack of scopes.
#include <remat/backend/saved_tensors_hooks_guard.h>

#include <utility>

#include <remat/engine/saved_tensors_hooks.h>

#include "saved_tensor_engine.h"

namespace remat {
namespace {

std::shared_ptr<const SavedTensorsHooks> checked(SavedTensorsHooks hooks) {
  check_saved_tensors_hooks(hooks, "SavedTensorsHooksGuard");
  SavedTensorEngine::install();
  return std::make_shared<const SavedTensorsHooks>(std::move(hooks));
}

}  // namespace

SavedTensorsHooksGuard::SavedTensorsHooksGuard(SavedTensorsHooks hooks)
    : scope_(std::make_unique<UserHooksScope>(checked(std::move(hooks)))) {}

SavedTensorsHooksGuard::~SavedTensorsHooksGuard() = default;

}  // namespace remat
