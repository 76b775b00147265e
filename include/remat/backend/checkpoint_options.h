// SPDX-License-Identifier: BSD-3-Clause

// Options of a checkpointed region.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/engine/cuts.h>
#include <remat/engine/determinism.h>
#include <remat/engine/offload_store.h>
#include <remat/engine/saved_tensors_pair.h>
#include <remat/engine/state_hook.h>
#include <remat/policy/policy.h>

namespace remat {

class RegionPolicy;
struct PlannedCuts;

/// How backward recomputes a region's saved tensors.
enum class ReplayEngine {
  kFunction,  ///< Calls the function again.
  kTape,  ///< Replays a tape of the forward's ops without calling the function. An op that a tape
          ///< cannot replay raises NotImplementedError in the forward.
  kAuto,  ///< Uses the tape, or the function if a tape cannot replay the forward.
};

/// Options of checkpoint() and checkpoint_sequential(), which copy them.
struct CheckpointOptions {
  /// Name of the region in messages; empty: "region without a name".
  std::string name{};

  /// Makes random ops draw the same numbers in the replay, and lets the random streams continue as
  /// they would without remat. Covers the default generators of the CPU and of every CUDA device in
  /// use, and `generators`. A region that draws nothing stores nothing.
  bool preserve_rng = true;

  /// Other generators than the default ones from which the function draws. Each must be defined.
  std::vector<at::Generator> generators{};

  /// How a replay is compared with its forward. A difference raises ReplayMismatch in backward.
  Determinism determinism = Determinism::kMetadata;

  /// Ends the replay at the last tensor that backward needs. The replay leaves the function by an
  /// exception that does not derive from std::exception; if no op comes after that tensor, the
  /// function returns instead. Not for a function that must run to its end or is noexcept.
  bool early_stop = true;

  /// Intercepts every op of the region: writes to memory outside the region happen once, reads of
  /// such memory are checked, and forward and replay are compared op by op. Turning it off saves
  /// about 0.2 us per op, but omits all of these checks, so a region that writes outside memory is
  /// silently replayed wrongly (only writes to its arguments still raise), and buffers that it
  /// writes need a buffer_hook().
  bool intercept = true;

  /// Side effects of the function happen once if backward replays a tape: always with kTape, and
  /// with kAuto unless it falls back to the function. Both engines need intercept = true.
  ReplayEngine replay = ReplayEngine::kFunction;

  /// Cuts the tape into segments, which backward replays one by one. Needs replay = kTape.
  Cuts cuts{};

  /// The cuts of a plan, from cuts_of(). Needs replay = kTape, and no `cuts`.
  std::shared_ptr<const PlannedCuts> plan{};

  /// Chooses the policy of the region's ops and named calls, for example
  /// make_policy(save_matmuls()). Null: the environment variable REMAT_POLICY, which names a preset
  /// or a JSON file; if that is unset, every op is recomputed and named calls keep the policy from
  /// their code. Needs intercept = true. Does not apply to regions nested in this one. Source:
  /// torch's selective checkpointing.
  std::shared_ptr<const RegionPolicy> policy{};

  /// Hooks that keep what the region holds from the forward: its tensor arguments and the tensors
  /// kept by its SAVE calls. Unset: the hooks of the innermost SavedTensorsHooksGuard around the
  /// region, or else the tensors themselves.
  std::optional<SavedTensorsHooks> saved_tensors_hooks{};

  /// Store for the tensors that OFFLOAD calls keep. Null: saved_tensors_hooks keep them, and must
  /// be set if there are such calls.
  std::shared_ptr<OffloadStore> offload_store{};

  /// Keeps the region's tensor arguments in offload_store, too; that store must be set. In a region
  /// without named calls nothing else is kept. Leaves that require gradients are not moved.
  bool offload_inputs = false;

  /// Reaction when a bare op reads a result of a SAVE call, which must then be kept implicitly.
  ImplicitKeep implicit_keep = ImplicitKeep::kKeep;

  /// State that a replay must find as the forward found it, restored in this order. No entry may be
  /// null.
  std::vector<std::shared_ptr<StateHook>> state_hooks{};

  /// Describes in one line where the op that is about to run was called; may return an empty
  /// string. Called at each op of the forward and of replays. If set, a ReplayMismatch lists the
  /// ops of both runs with these lines. For debugging only, because a region keeps all of its
  /// lines. Needs `intercept`.
  OpSite op_site{};
};

}  // namespace remat
