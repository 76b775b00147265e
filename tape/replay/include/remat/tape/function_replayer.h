// SPDX-License-Identifier: BSD-3-Clause

// Replay by calling the user's function again.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <any>
#include <memory>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/region_body.h>
#include <remat/tape/region_input.h>
#include <remat/tape/replayer.h>
#include <remat/tape/state_hook.h>
#include <remat/tape/thread_state.h>

namespace remat {

struct ReplayParts;

/// Holds what the function needs to run as in the forward: arguments, settings, generators and user
/// state.
class REMAT_API FunctionReplayer final : public Replayer {
 public:
  struct Options {
    bool preserve_rng = true;
    std::vector<at::Generator> generators;
    std::vector<std::shared_ptr<StateHook>> state_hooks;
  };

  /// Reads all state as it is now, at region entry, before the region's scope is pushed.
  FunctionReplayer(std::unique_ptr<const RegionBody> body, c10::ArrayRef<at::Tensor> inputs,
                   const Options& options);

  /// Call it when the forward has ended: drops the generators that it did not draw from. Throws if
  /// the region wrote a tensor argument in place and its ops were not observed.
  void finish_forward(const Region& region) override;

  /// Drops the function and the state that it needs: from now on only the arguments are used.
  void release_function() noexcept;

  void replay(const Region& region, ReplayedSlots& slots) const override;
  /// The thread's state at region entry.
  const ThreadState& thread_state() const { return thread_state_; }

  void visit_inputs(c10::function_ref<void(const RegionInput&)> visit) const override {
    for (const RegionInput& input : inputs_) visit(input);
  }

 private:
  void run_body(const ReplayParts& parts, c10::ArrayRef<at::Tensor> inputs) const;

  std::unique_ptr<const RegionBody> body_;
  std::vector<RegionInput> inputs_;
  std::vector<size_t> first_position_;  // Per argument, the first position of the same tensor.
  ThreadState thread_state_;
  std::vector<GeneratorState> generators_;
  std::vector<std::shared_ptr<StateHook>> state_hooks_;
  std::vector<std::any> states_;  // One per hook, at region entry.
};

}  // namespace remat
