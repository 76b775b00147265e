// SPDX-License-Identifier: BSD-3-Clause

// The scope of a region's forward: drops what autograd saves and leaves a slot instead, and writes
// down what its ops touch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <any>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/tape/call_settings.h>
#include <remat/tape/export.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/named_call.h>
#include <remat/tape/region.h>
#include <remat/tape/saved_tensors_hooks.h>
#include <remat/tape/scope.h>
#include <remat/tape/storage_table.h>
#include <remat/tape/tape_trust.h>

namespace remat {

class CallProduct;
class ForwardCalls;
class SavedMemory;
class Tape;
class TapeRecorder;
class TapeReplayer;
class UserPair;
struct Cuts;

class REMAT_API ForwardScope final : public Scope {
 public:
  /// `inputs`: the region's tensor arguments. Ops are seen if the region asks for it. `calls`: for
  /// its named calls.
  ForwardScope(std::shared_ptr<Region> region, c10::ArrayRef<at::Tensor> inputs,
               CallSettings calls = {});

  /// Its ops are recorded on `tape`, with hashes of what those save that are not `trusted`; if
  /// `strict`, what a tape cannot replay raises. Once, before the first op.
  void record(Tape& tape, TrustedOps trusted, bool strict);

  /// The tape that is recorded is cut; `whole` replays it. Once, after record().
  void cut(const Cuts& cuts, std::shared_ptr<TapeReplayer> whole);

  /// The function has returned.
  void finish();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  const Region* forward_region() const override { return region_.get(); }
  TraceScope trace_scope() const override;
  void before_backward(const EdgeList& roots) override;
  void before_hooks(size_t count) override;
  void before_accumulate(const EdgeList& roots) override;
  void after_backward(c10::ArrayRef<at::Tensor> gradients) override;
  bool allows_tapes() const override;
  bool decide_tape(bool wanted) override;
  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  void after_data(const at::Tensor& tensor) override;
  void before_set_data(const at::Tensor& tensor) override;
  void adopt(const at::Tensor& tensor) override;
  void adopt_part(const at::Tensor& tensor) override;
  void check_handler_write(const OpInfo& info, const std::string& op,
                           const c10::Storage& storage) const override;
  const RegionPolicy* segment_policy() override;
  void save_next(Policy policy) override;
  void save_results(const OpCall& call, Policy policy) override;
  void phase_was_asked() override;
  NamedCalls* named_calls() override;
  std::any capture_context() override { return {}; }  // an outer region's slots take what is kept

 private:
  friend class ForwardCalls;
  friend class SlotHook;

  void before_slot(const at::Tensor& tensor);
  std::optional<ForwardMemory> memory_for_others(const at::Tensor& tensor) const;
  /// Stands for `tensor`, which autograd saves.
  Slot& add_slot(const at::Tensor& tensor);
  /// The one that the slots are of.
  const std::shared_ptr<Region>& slot_region() const;
  void keep_cut_value(CallProduct& value, const at::Tensor& tensor, Policy policy);
  /// Runs `keep`, which keeps `tensor`, so that `pair` gets it; without one, in the scopes around
  /// the region.
  void through_hooks(const SavedTensorInfo& info, const at::Tensor& tensor, Keep reach,
                     const UserPair& pair, c10::function_ref<void()> keep);
  /// The store if it `may_store` and there is one, else the hooks of the options.
  UserPair pair_of_options(bool may_store);
  /// True if hooks of the user get what through_hooks() keeps, not an outer region.
  bool gives_to_user(Keep reach, const UserPair& pair) const;
  bool logs() const;
  /// The function itself goes backward now, and will in a replay.
  bool replays_backward() const;
  void note_grad(const at::Tensor& tensor);
  void keep_grads();
  void check_leaf(const torch::autograd::Node& node, const at::Tensor& leaf) const;
  void log_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  Origin origin_of(const at::Tensor& tensor);
  void before_draw(const OpCall& call);
  void after_draw();
  void note_captured(const at::Tensor& tensor, Origin origin);
  void watch_wrapper(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  void watch(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);
  void check_plain(const OpInfo& info, const at::Tensor& tensor) const;
  void check_writable(const OpInfo& info, const at::Tensor& tensor, Origin origin) const;
  void note_cast(const at::Tensor& leaf, Origin origin);
  void check_cast(const at::Tensor& tensor, Origin origin);
  void refuse_stale_cast(const at::Tensor& leaf);
  void check_no_stale_cast() const;
  void check_unshared(const OpInfo& info, const at::Tensor& tensor) const;
  void read_outside(const at::Tensor& tensor, OutsideStorage& outside);
  bool is_read_outside(const at::Tensor& tensor) const;
  void read_for_slot(const at::Tensor& tensor);
  void write_outside(const OpCall& call);
  void cover_written(bool op_has_ended);
  void begin_write(const at::Tensor& tensor, OutsideStorage& outside);
  void keep_part(const at::Tensor& tensor, OutsideStorage& outside, const TensorLayout& part);
  [[noreturn]] void refuse_unshard(const OpInfo& info) const;
  void check_outside_sizes() const;
  void note_saved_writes(const OpCall& call);
  void note_other_versions_of(const OpCall& call);
  void check_saved();
  void keep_before_write(const at::Tensor& tensor, Origin origin);

  std::shared_ptr<Region> region_;
  StorageTable storages_;
  std::unique_ptr<SavedMemory> saved_;  // in slots
  int graph_task_;
  const OpInfo* op_ = nullptr;            // the one that runs
  size_t written_down_ = 0;               // ops and calls
  bool is_written_down_ = false;          // the op that runs
  Origin made_ = Origin::inside();        // of what it makes, if it is not
  at::Tensor cast_leaf_;                  // what it casts, if a cache could have answered
  std::optional<TensorMeta> stale_cast_;  // a leaf: Note [Stale casts]
  bool writes_any_outside_ = false;       // the region, so far
  bool views_memory_outside_ = false;     // by it
  bool writes_outside_ = false;           // it
  struct WholeWrite {
    size_t number;  // of the storage from outside
    at::Tensor tensor;
    SavedVersion before;
  };
  std::vector<WholeWrite> writes_whole_;  // of it, if it does not throw
  // With what their .grad was before the backward inside that runs.
  std::vector<std::pair<at::Tensor, GradBefore>> grads_;
  // Tensors whose .grad one has written in place; and those whose replays know what it was.
  std::unordered_set<const c10::TensorImpl*> grads_written_;
  std::unordered_set<const c10::TensorImpl*> grads_made_;
  bool phase_asked_ = false;
  bool views_wrapper_outside_ = false;
  std::unordered_set<const void*> wrapper_views_;  // see watch_wrapper()
  const bool has_hooks_around_;                    // the user's
  CallSettings call_settings_;
  std::vector<GeneratorMark> marks_;     // before the op that runs, if it may draw
  std::unique_ptr<ForwardCalls> calls_;  // from the first named call on
  std::unique_ptr<TapeRecorder> recorder_;
  std::shared_ptr<const SavedTensorsHooks> offload_hooks_;  // the store as hooks, once asked for
};

}  // namespace remat
