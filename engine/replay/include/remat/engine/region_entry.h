// SPDX-License-Identifier: BSD-3-Clause

// The arguments and the state that a region's forward began with.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <any>
#include <cstddef>
#include <memory>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/region_input.h>
#include <remat/engine/state_hook.h>
#include <remat/engine/thread_state.h>

namespace remat {

class Region;

using StateHooks = std::vector<std::shared_ptr<StateHook>>;

/// Arguments, settings, generators and user state at region entry. Shared by the region's
/// FunctionReplayer and TapeReplayer. Both need the arguments and the settings; only the function
/// needs generators and user state.
class REMAT_API RegionEntry {
 public:
  struct Options {
    bool preserve_rng = true;
    std::vector<at::Generator> generators;
    StateHooks state_hooks;
  };

  /// Reads all state as it is now, before the region's scope is pushed.
  RegionEntry(c10::ArrayRef<at::Tensor> inputs, const Options& options);

  /// Call it when the forward has ended. Drops the generators that the forward did not draw from.
  /// Throws if the region's ops were not observed and wrote a tensor argument in place.
  void finish_forward(const Region& region);

  /// Drops the generators' state and the user's.
  void release_state() noexcept;

  const std::vector<RegionInput>& inputs() const { return inputs_; }
  /// Position of the first argument that is the same tensor as argument `i`.
  size_t first_position(size_t i) const { return first_position_[i]; }
  const ThreadState& thread_state() const { return thread_state_; }
  const std::vector<GeneratorState>& generators() const { return generators_; }
  const StateHooks& state_hooks() const { return state_hooks_; }
  /// The user's state, one per hook.
  const std::vector<std::any>& user_states() const { return user_states_; }

 private:
  std::vector<RegionInput> inputs_;
  std::vector<size_t> first_position_;
  ThreadState thread_state_;
  std::vector<GeneratorState> generators_;
  StateHooks state_hooks_;
  std::vector<std::any> user_states_;
};

}  // namespace remat
