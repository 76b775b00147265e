// SPDX-License-Identifier: BSD-3-Clause

// Named calls in a region's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/backward_observer.h>
#include <remat/engine/named_calls.h>
#include <remat/engine/op_call.h>

#include "call_collectives.h"
#include "call_products.h"
#include "call_saved_tensors.h"
#include "forward_slots.h"
#include "forward_state.h"
#include "outside_watch.h"
#include "pending_writes.h"
#include "saved_call.h"
#include "saved_call_ops.h"

namespace remat {

/// The stack of running named calls. Its members handle what SAVE calls return and write, the
/// tensors saved in them, their ops, and collectives. The class is large because it handles calls
/// that throw.
class ForwardCalls final : public NamedCalls {
 public:
  ForwardCalls(ForwardState& state, OutsideWatch& outside, ForwardSlots& slots);

  Action begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) override;
  std::vector<at::Tensor> to_write() override { return {}; }
  CallResults results() override { return {}; }
  void before_skip(c10::ArrayRef<at::Tensor> writes, c10::ArrayRef<at::Tensor> arguments) override;
  void end(const CallResults& results) override;
  void abandon() noexcept override;
  void expect_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
                    const SavingState& saving) override;
  void name_saved(const std::vector<std::string>& names,
                  c10::ArrayRef<at::Tensor> tensors) override;
  void need(const at::Tensor& tensor) override;
  bool is_replay() const override { return false; }
  bool takes_ops() const override { return !state_.is_saving && state_.is_own_code(); }
  bool is_given(const at::Tensor& tensor) const override {
    return state_.storages.is_given(tensor);
  }

  /// The running SAVE call; null if there is none.
  const NamedCall* saved_call() const { return saved_.record ? &saved_.record->call : nullptr; }

  SavedCallOps& saved_ops() { return ops_; }

  /// Call it before an op outside SAVE calls runs, or before a SAVE call begins.
  void go_on() {
    saves_.before_other();
    if (C10_UNLIKELY(!thrown_.read.empty())) keep_read_by_thrown();
  }

  /// Call it before the op uses `tensor`, outside SAVE calls, as argument `argument`.
  void before_use(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin) {
    products_.before_use(call, argument, tensor, origin);
  }
  /// Call it before the op reads the inner tensors of `wrapper`.
  void read_inside(const OpCall& call, const at::Tensor& wrapper) {
    collectives_.read_inside(wrapper, &call.info());
  }

  /// Call it before a slot is added for `tensor`, outside SAVE calls.
  void before_slot(const at::Tensor& tensor);

  /// True if autograd may save the next tensor for a SAVE call. If so, use make_hooks().
  bool takes_saved() const { return saves_.takes_saved(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() { return saves_.make_hooks(); }

  /// Call it before `tensor` gets other memory.
  void before_set_data(const at::Tensor& tensor) { saves_.before_set_data(tensor); }

  /// Throws if a backward from `roots` runs nodes of a SAVE call, as a replay could not follow.
  void check_backward(const EdgeList& roots) const;

  /// Call it when the function has returned.
  void finish();

 private:
  /// SAVE calls, calls inside SAVE calls, RECOMPUTE calls, and calls in a backward in the function.
  enum class Open : uint8_t { kSaved, kInner, kRecomputed, kUnwatched };

  c10::ArrayRef<at::Tensor> as_seen(c10::ArrayRef<at::Tensor> tensors,
                                    c10::SmallVector<at::Tensor, 2>& replaced) const;
  Action begin_unwatched(const NamedCall& call);
  void check_call(const NamedCall& call) const;
  void log_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  void begin_saved(CallRecord& record, c10::ArrayRef<at::Tensor> arguments);
  /// end_saved() and close_saved() return tensors that the call held: see Note [What dies with a
  /// SAVE call].
  [[nodiscard]] std::vector<at::Tensor> end_saved(const CallResults& results);
  void abandon_saved() noexcept;
  [[nodiscard]] std::vector<at::Tensor> close_saved() noexcept;
  void keep_read_by_thrown();
  void check_thrown() const;

  ForwardState& state_;
  OutsideWatch& outside_;
  SavedCall saved_;
  PendingWrites pending_;
  CallProducts products_;
  CallSavedTensors saves_;
  CallCollectives collectives_;
  SavedCallOps ops_;
  std::vector<Open> open_;                      // The innermost is last.
  std::unordered_set<std::string_view> names_;  // Names of all calls in the records.
  /// `read`: arguments of calls that threw, held until the next op. `writing`: index of such a call
  /// that may have written memory.
  struct Thrown {
    std::vector<at::Tensor> read;
    size_t writing = SavedCall::kNone;
  };
  Thrown thrown_;
  std::vector<std::pair<uint64_t, uint64_t>> nodes_;  // Sequence number ranges of SAVE calls.
};

}  // namespace remat
