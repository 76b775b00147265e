// SPDX-License-Identifier: BSD-3-Clause

// Running a region's function again, and collecting what autograd saves.
#include <remat/engine/function_replayer.h>
#include <remat/engine/hidden_scopes.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <remat/engine/first_position.h>
#include <remat/engine/region.h>
#include <remat/engine/region_run.h>
#include <remat/engine/replayed_nodes.h>
#include <remat/engine/scope.h>
#include <remat/engine/trace_sink.h>

#include <remat/engine/turn.h>
#include <remat/engine/unseen.h>
#include "leaf_grads.h"
#include "replay_scope.h"
#include "tensor_hooks.h"

namespace remat {
namespace {

/// Gives leaves from outside the requires_grad that they had in the forward. Restores the present
/// flag afterwards, because the function may freeze leaves and be stopped before it unfreezes them.
class KeptRequiresGrad {
 public:
  explicit KeptRequiresGrad(const OutsideLog& outside) {
    for (const auto i : c10::irange(outside.size())) {
      at::Tensor tensor(outside[i].first_tensor().lock());
      if (!tensor.defined() || !tensor.is_leaf() || !may_require_grad(tensor)) continue;
      const bool requires_grad = tensor.requires_grad();
      const bool did_require = outside[i].meta().requires_grad();
      // Not with create_graph, because the backward's graph would then lead to other leaves.
      if (requires_grad != did_require && !c10::GradMode::is_enabled())
        tensor.unsafeGetTensorImpl()->set_requires_grad(did_require);
      leaves_.emplace_back(std::move(tensor), requires_grad);
    }
  }
  KeptRequiresGrad(const KeptRequiresGrad&) = delete;
  KeptRequiresGrad& operator=(const KeptRequiresGrad&) = delete;
  ~KeptRequiresGrad() {
    for (const auto& [leaf, requires_grad] : leaves_) {
      if (leaf.is_leaf() && leaf.requires_grad() != requires_grad)
        leaf.unsafeGetTensorImpl()->set_requires_grad(requires_grad);
    }
  }

 private:
  static bool may_require_grad(const at::Tensor& tensor) {
    return !tensor.is_inference() && torch::autograd::isDifferentiableType(tensor.scalar_type());
  }

  std::vector<std::pair<at::Tensor, bool>> leaves_;
};

/// Replaces the user's state by the state at region entry, and restores the present state.
class UserStateExchange {
 public:
  explicit UserStateExchange(const RegionEntry& entry)
      : hooks_(entry.state_hooks()), at_entry_(entry.user_states()) {
    SuspendScopes suspend;
    present_.reserve(hooks_.size());
    for (const auto& hook : hooks_) present_.push_back(hook->snapshot());
  }

  void begin() {
    SuspendScopes suspend;
    for (const auto i : c10::irange(hooks_.size())) {
      begun_ = i + 1;
      hooks_[i]->restore(at_entry_[i]);
    }
  }

  /// Undoes begin(), even if begin() threw. Runs all hooks, then returns the first exception.
  std::exception_ptr end() {
    SuspendScopes suspend;
    std::exception_ptr error;
    for (; begun_ > 0; --begun_) {
      try {
        hooks_[begun_ - 1]->restore(present_[begun_ - 1]);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    return error;
  }

 private:
  const StateHooks& hooks_;
  const std::vector<std::any>& at_entry_;
  std::vector<std::any> present_;
  size_t begun_ = 0;
};

/// Rethrows the exception that left a region's function, with the region in its message (except
/// when out of memory).
[[noreturn]] void rethrow_with_region(const std::exception_ptr& escaped, const Region& region) {
  try {
    std::rethrow_exception(escaped);
  } catch (c10::OutOfMemoryError&) {
    throw;
  } catch (c10::Error& error) {
    error.add_context(
        c10::str("[replay] ", region.label(), ": raised when its function ran again"));
    throw;
  } catch (std::exception&) {
    throw;
  } catch (...) {
    // Autograd's engine handles only exceptions derived from std::exception.
    TORCH_CHECK(false, "[replay] ", region.label(),
                ": expected its function to throw std::exceptions only when it runs again, got "
                "something else. Throw a std::exception.");
  }
}

/// Note [Numbers of nodes]: autograd runs the node with the highest sequence number first, which
/// decides the order in which gradients are added. Nodes that a function makes have higher numbers
/// than nodes that it captures. Each thread has its own counter, so a replay on one of autograd's
/// threads first advances that thread's counter to where the forward began. Otherwise a backward
/// inside the function would round differently.
void number_nodes_from(uint64_t first) {
  while (at::sequence_number::peek() < first) at::sequence_number::get_and_increment();
}

}  // namespace

void FunctionReplayer::replay(const Region& region, ReplayedSlots& slots) const {
  // The trace begins here, because the copies made below are not ops of the program.
  const auto reported =
      traced([&](TraceSink& sink, bool begins) { sink.function_replay(region, begins); });
  region.outside().gather_again();
  // These two come first: they may replay outer regions, which must not see this region's state.
  ReplayMemory memory(region);
  ReplayProducts products(region, memory.storages());
  std::vector<at::Tensor> inputs;
  const std::vector<RegionInput>& kept = entry_->inputs();
  inputs.reserve(kept.size());
  for (const auto i : c10::irange(kept.size())) {
    const size_t first = entry_->first_position(i);
    inputs.push_back(first == i ? kept[i].replayed(region.label(), memory.shadow_of_argument(i))
                                : inputs[first]);
  }
  for (const auto i : c10::irange(inputs.size()))
    memory.enter_argument(i, inputs[i], kept[entry_->first_position(i)].moved(inputs[i]));
  const SetGrads grads(region.outside());
  const KeptRequiresGrad requires_grad(region.outside());
  const TensorHooks hooks(inputs, region.outside().captured(), *body_);

  std::optional<Turn> turn;
  if (!entry_->state_hooks().empty() || !entry_->generators().empty()) turn.emplace();
  UserStateExchange user_state(*entry_);
  std::exception_ptr error;
  try {
    user_state.begin();
    run_body({region, *body_, slots, memory, products, hooks, entry_->state_hooks()}, inputs);
  } catch (...) {
    error = std::current_exception();
  }
  const std::exception_ptr hook_error = user_state.end();
  if (error) std::rethrow_exception(error);
  if (hook_error) std::rethrow_exception(hook_error);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !hooks.lost(), "[replay] ", region.label(),
      ": expected its function to leave the hooks of arguments and captured tensors, or to replace "
      "those that it has set itself, got one that removed another hook when it ran again. Remove "
      "hooks outside of the region, or run backward before the next call; with early_stop = false "
      "what the function does at its end is done, too.");
}

void FunctionReplayer::run_body(const ReplayParts& parts, c10::ArrayRef<at::Tensor> inputs) const {
  const Region& region = parts.region;
  entry_->thread_state().check_precision(region.label());
  uint64_t replay = 0;
  // Destroyed last, since functions run code when destroyed. See Note [The graph of a replay].
  const auto end_regions = c10::make_scope_exit(
      [&, before = youngest_region()] { end_regions_of_replay(replay, before); });
  const ReplayThreadState thread_state(entry_->thread_state(), region.casts_weights());
  const KeptGenerators generators(entry_->generators());
  std::shared_ptr<const void> result;  // Outlives the scope, as in the forward.
  const ReplayedNodes nodes;
  if (region.inner_backwards().any) number_nodes_from(region.nodes().begin);
  ReplayScope scope(parts);
  replay = scope.replay_id();
  std::exception_ptr escaped;
  try {
    result = body_->run(inputs);
  } catch (...) {
    escaped = std::current_exception();
  }
  try {
    if (escaped && ((!scope.progress().stopped() && !scope.progress().failed()) ||
                    body_->outranks_stop(escaped)))
      rethrow_with_region(escaped, region);
    scope.check_complete();
  } catch (...) {
    body_->rethrow(std::current_exception(), escaped);
  }
}

}  // namespace remat
