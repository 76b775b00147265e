// SPDX-License-Identifier: BSD-3-Clause

// The scope of a replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <remat/tape/region.h>
#include <remat/tape/region_body.h>
#include <remat/tape/scope.h>

#include "leaf_grads.h"
#include "replay_calls.h"
#include "replay_ops.h"
#include "tensor_hooks.h"

namespace remat {

/// What a replay is of, and what it works with.
struct ReplayParts {
  const Region& region;
  const RegionBody& body;  ///< What runs.
  ReplayedSlots& slots;
  ReplayOps& ops;
  const TensorHooks& hooks;
  const StateHooks& state_hooks;
};

/// Gives each tensor that autograd saves to the slot at the same place in the forward's order, and
/// compares what is seen with the forward.
class ReplayScope final : public Scope {
 public:
  explicit ReplayScope(const ReplayParts& parts);

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region* replayed_region() const override { return &region_; }
  TraceScope trace_scope() const override {
    return {.region = &region_, .is_replay = true, .slot = count_};
  }
  uint64_t replay_id() const override { return id_; }
  void before_backward(const EdgeList& roots) override;
  void before_hooks(size_t count) override;
  void before_accumulate(const EdgeList& roots) override;
  void after_backward(c10::ArrayRef<at::Tensor> gradients) override;
  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  void adopt(const at::Tensor& tensor) override;
  at::Tensor stand_in(const at::Tensor& tensor) override;
  torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) override;
  void phase_was_asked() override { comparison_ends_ = true; }
  NamedCalls* named_calls() override { return &calls_; }
  std::any capture_context() override { return {}; }
  bool allows_tapes() const override { return true; }  // if the forward did
  bool decide_tape(bool wanted) override;

  /// True once every needed slot is filled and the function was told to stop: what escapes from it
  /// then is the stop.
  bool stopped() const { return stopped_; }

  bool failed() const { return error_ != nullptr; }
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);  // the function may have caught the first one
  }

  /// Calls `fn`; what it throws, but for the stop, is what this replay fails with, even if the
  /// region's function catches it.
  template <class Fn>
  decltype(auto) or_fail(Fn&& fn) {
    try {
      return std::forward<Fn>(fn)();
    } catch (...) {
      if (!stopped_) fail(std::current_exception());
      throw;
    }
  }

  /// Throws the body's stop, or lets what cannot be left by an exception end first.
  void stop();
  void stop_if_complete();

  /// True if what runs now is the region's function, not a backward inside it.
  bool is_own_code() const;
  /// True if ops are compared with the forward's.
  bool compares() const;
  /// The function has asked is_recomputing().
  bool comparison_ended() const { return comparison_ends_; }

  /// How many slots have been reached.
  size_t slot_count() const { return count_; }
  /// Fills slot `index`, the next one, from a call that does not run.
  void fill(size_t index, const at::Tensor& value);
  /// Goes on to the slot `count` further: these belong to a call that threw.
  void pass_slots(size_t count) { count_ += count; }

  /// Raises what went wrong although the function has returned: a mismatch that it caught, or slots
  /// that it did not reach.
  void check_complete() const;

 private:
  class Hook;

  bool is_mine(const torch::autograd::Node& node) const;
  bool is_of_forward(const torch::autograd::Node& node) const;
  [[noreturn]] void hooks_mismatch(size_t backward, size_t expected, size_t got) const;
  [[noreturn]] void roots_mismatch(size_t backward) const;
  bool compares_backward() const;
  bool is_same_part(const Slot& slot, const at::Tensor& tensor) const;
  bool is_saved_by_same_op(const Slot& slot) const;
  void compare_gradients(c10::ArrayRef<at::Tensor> gradients);
  void receive(const at::Tensor& tensor, const at::Tensor& value);
  bool is_saved_by_custom_function() const;
  void check_position(const at::Tensor& tensor) const;
  void check(const at::Tensor& tensor) const;
  [[noreturn]] void mismatch(size_t index, const std::string& expected, const std::string& got,
                             const std::string& detail) const;

  const Region& region_;
  const RegionBody& body_;
  const uint64_t id_;
  ReplayedSlots& values_;
  ReplayOps& ops_;
  const TensorHooks& hooks_;
  const size_t end_;  // one past the last live slot
  const int graph_task_;
  const int uncaught_exceptions_;
  const uint64_t thread_;      // as nodes know it
  const uint64_t first_node_;  // that this replay makes
  size_t count_ = 0;
  bool stopped_ = false;
  const OpInfo* op_ = nullptr;  // the one that runs
  bool op_writes_ = false;      // one of its arguments
  bool stops_after_op_ = false;
  bool stops_before_op_ = false;  // the next one
  bool comparison_ends_ = false;
  size_t inner_regions_ = 0;
  size_t backwards_ = 0;        // inside, that returned gradients
  size_t begun_backwards_ = 0;  // all of them
  std::exception_ptr error_;
  LeafGrads leaf_grads_;
  ReplayCalls calls_;
};

}  // namespace remat
