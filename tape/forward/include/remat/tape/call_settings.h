// SPDX-License-Identifier: BSD-3-Clause

// What a region's options say about its named calls.
#pragma once

#include <memory>

#include <remat/policy/policy.h>
#include <remat/tape/function_replayer.h>
#include <remat/tape/offload_store.h>
#include <remat/tape/saved_tensors_hooks.h>

namespace remat {

struct CallSettings {
  ImplicitKeep implicit_keep = ImplicitKeep::kKeep;
  std::shared_ptr<const SavedTensorsHooks> hooks;  ///< The region's own; null if it has none.
  std::shared_ptr<OffloadStore> offload_store;     ///< May be null.
  bool offload_inputs = false;                     ///< The region's arguments are there too.
  FunctionReplayer::Options state;  ///< What a replay restores, and so a skipped call too.
};

}  // namespace remat
