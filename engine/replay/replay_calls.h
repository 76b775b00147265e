// SPDX-License-Identifier: BSD-3-Clause

// Named calls in a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <string>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/named_calls.h>
#include <remat/engine/region.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/torch_compat.h>

#include "replay_comparison.h"
#include "replay_memory.h"
#include "replay_products.h"
#include "replay_progress.h"

namespace remat {

/// Runs RECOMPUTE calls. Leaves out SAVE calls, fills the slots of a SAVE call from its arguments,
/// and makes its results from kept values or placeholders.
class ReplayCalls final : public NamedCalls {
 public:
  ReplayCalls(const Region& region, ReplayProgress& progress, ReplayComparison& comparison,
              ReplayMemory& memory, ReplayProducts& products, const StateHooks& state_hooks)
      : region_(region),
        progress_(progress),
        comparison_(comparison),
        memory_(memory),
        products_(products),
        state_hooks_(state_hooks) {}

  Action begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) override;
  std::vector<at::Tensor> to_write() override;
  CallResults results() override;
  void before_skip(c10::ArrayRef<at::Tensor> /*writes*/,
                   c10::ArrayRef<at::Tensor> /*arguments*/) override {}
  void end(const CallResults& results) override;
  void abandon() noexcept override;
  void expect_saved(const std::vector<std::string>& /*names*/,
                    c10::ArrayRef<at::Tensor> /*tensors*/, const SavingState& /*saving*/) override {
  }
  void need(const at::Tensor& /*tensor*/) override {}
  bool is_replay() const override { return true; }
  bool takes_ops() const override;
  bool knows_next_op() const override;
  bool is_given(const at::Tensor& tensor) const override { return memory_.is_given(tensor); }

  /// Throws if the forward made calls that the replay has not made.
  void check_complete() const;

 private:
  void compare(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  Action begin_recorded(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  /// True if the forward is still running (a backward in it has started this replay) and the replay
  /// has repeated all named calls that the forward has made so far.
  bool is_past_forward() const;
  const CallRecord& next_record(const NamedCall& call);
  CallResults skip(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments);
  void check_arguments(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments) const;
  void fill_slots(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments);
  void apply_writes(const CallRecord& record, c10::ArrayRef<at::Tensor> arguments);
  at::Tensor make_output(const CallRecord& record, const CallOutput& output,
                         c10::ArrayRef<at::Tensor> arguments);
  void restore_state(const CallRecord& record);
  static at::Tensor view_of(const at::Tensor& argument, const CallOutput& output);
  void put_written_in_graph(const CallRecord& record, const at::Tensor& argument);
  void put_in_graph(const CallRecord& record, at::Tensor tensor);
  std::string where(const CallRecord& record) const;

  const Region& region_;
  ReplayProgress& progress_;
  ReplayComparison& comparison_;
  ReplayMemory& memory_;
  ReplayProducts& products_;
  const StateHooks& state_hooks_;
  size_t next_ = 0;                      // Index in the region's records.
  std::vector<const CallRecord*> open_;  // Running calls; null for calls that are not recorded.
  std::vector<at::Tensor> arguments_;    // Arguments of the skipped call.
  NodePtr node_;                         // Node of the skipped call.
};

}  // namespace remat
