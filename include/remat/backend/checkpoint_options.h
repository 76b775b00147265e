// SPDX-License-Identifier: BSD-3-Clause

// What a caller may ask of a checkpointed region.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/tape/cuts.h>
#include <remat/tape/offload_store.h>
#include <remat/tape/replay_comparison.h>
#include <remat/tape/saved_tensors_pair.h>
#include <remat/tape/state_hook.h>

namespace remat {

class RegionPolicy;

/// What makes the saved tensors again.
enum class ReplayEngine {
  kFunction,  ///< The function, called again.
  kTape,      ///< A tape of the forward's ops. The function is not called again; what a tape cannot
              ///< replay raises NotImplementedError in the forward.
  kAuto,      ///< The tape; the function where a tape cannot replay the forward.
};

/// Options of checkpoint() and checkpoint_sequential(), each a member. Copied by them.
struct CheckpointOptions {
  /// Names the region in messages. Empty: "region without a name".
  std::string name{};

  /// Random ops draw the same numbers in the replay, and the streams continue as without remat: the
  /// default generators of the CPU and of every CUDA device in use, and `generators`. A region that
  /// draws nothing stores nothing.
  bool preserve_rng = true;

  /// Generators beyond the default ones that the function draws from. Must be defined.
  std::vector<at::Generator> generators{};

  /// What of each saved tensor is compared between forward and replay. A difference raises
  /// ReplayMismatch in backward.
  Determinism determinism = Determinism::kMetadata;

  /// End the replay at the last tensor that backward needs, by an exception through the function
  /// that is no std::exception; where no op comes after it, the function returns. Turn it off for a
  /// function that must run to its end, or that is noexcept.
  bool early_stop = true;

  /// See every op of the region: what it writes outside is written once, what it reads outside is
  /// watched, and forward and replay are compared op by op. Off, it saves about 0.2 us an op, and
  /// all of this goes unchecked: a region that writes outside is replayed wrongly in silence, but
  /// for its arguments, which raise; buffers that it writes need a buffer_hook().
  bool intercept = true;

  /// kTape and kAuto: side effects of the function happen once. Needs intercept = true.
  ReplayEngine replay = ReplayEngine::kFunction;

  /// Cuts the tape into segments that backward replays one by one. Needs replay = kTape.
  Cuts cuts{};

  /// What becomes of the region's ops and named calls: make_policy(save_matmuls()). Null: what
  /// the environment variable REMAT_POLICY says, a preset or a JSON file; without it every op is
  /// run again, and named calls are what their code says. Needs intercept = true. Does not reach
  /// into regions inside. Source: torch's selective checkpointing.
  std::shared_ptr<const RegionPolicy> policy{};

  /// Keep what the region holds from the forward, its tensor arguments and what its SAVE calls
  /// keep, through these hooks. Unset: those of the innermost SavedTensorsHooksGuard around the
  /// region; without one, the tensors themselves.
  std::optional<SavedTensorsHooks> saved_tensors_hooks{};

  /// Where OFFLOAD calls keep what the region makes. Null: in saved_tensors_hooks, which must be
  /// set then.
  std::shared_ptr<OffloadStore> offload_store{};

  /// Keep the region's tensor arguments in offload_store too, which must be set: what a region
  /// without named calls keeps at all. Leaves that require gradients stay.
  bool offload_inputs = false;

  /// What to do when a bare op reads a result of a SAVE call that nobody asked to keep.
  ImplicitKeep implicit_keep = ImplicitKeep::kKeep;

  /// State that a replay must find as the forward found it, restored in this order. Must not be
  /// null.
  std::vector<std::shared_ptr<StateHook>> state_hooks{};

  /// Says in a line where the op that is about to run comes from; called at each op of the forward
  /// and of replays. If it is set, a ReplayMismatch lists the ops of both with what it said. May
  /// return an empty string. For debugging: a region keeps all these lines. Needs `intercept`.
  OpSite op_site{};
};

}  // namespace remat
