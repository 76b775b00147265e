// SPDX-License-Identifier: BSD-3-Clause

// Named calls in a region's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/tape/call_settings.h>
#include <remat/tape/first_position.h>
#include <remat/tape/forward_scope.h>
#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>

#include "user_pair.h"

namespace remat {

/// Lets calls run and decides what of a SAVE call stays.
///
/// Note [What a SAVE call keeps]: of the tensors that autograd saves in it, those that are made by
/// the call, by another SAVE call or outside of the region are kept, as without remat. Those that
/// code of the region made which a replay runs again are not: a replay gets them from the call's
/// arguments (CallRecord::refills). Its results are kept when an op outside of SAVE calls reads
/// their data, and let go again at the end of the region if no slot comes after that op, because no
/// replay gets there.
class ForwardCalls final : public NamedCalls {
 public:
  /// `settings` live as long as `scope`, which owns this object.
  ForwardCalls(ForwardScope& scope, std::shared_ptr<Region> region, const CallSettings& settings);
  ForwardCalls(const ForwardCalls&) = delete;
  ForwardCalls& operator=(const ForwardCalls&) = delete;
  ~ForwardCalls() override;

  Action begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) override;
  std::vector<at::Tensor> to_write() override { return {}; }
  CallResults results() override { return {}; }
  void before_skip(c10::ArrayRef<at::Tensor> writes, c10::ArrayRef<at::Tensor> arguments) override;
  void end(const CallResults& results) override;
  void abandon() noexcept override;
  void expect_saved(std::vector<std::string> names, c10::ArrayRef<at::Tensor> tensors) override;
  void name_saved(const std::vector<std::string>& names,
                  c10::ArrayRef<at::Tensor> tensors) override;
  void need(const at::Tensor& tensor) override;
  bool is_replay() const override { return false; }
  bool is_own_code() const;
  bool takes_ops() const override;
  bool is_given(const at::Tensor& tensor) const override;

  /// True inside a SAVE call.
  bool saving() const { return saved_.record != nullptr; }

  /// That call; null outside of SAVE calls.
  const NamedCall* saved_call() const { return saving() ? &saved_.record->call : nullptr; }

  /// An op of a SAVE call is about to run; it has run.
  void before_saved_op(const OpCall& call);
  void after_saved_op(const OpCall& call);
  void adopt(const at::Tensor& tensor);

  /// An op outside of SAVE calls is about to use a tensor of this origin as argument `argument`.
  void before_use(const OpCall& call, size_t argument, const at::Tensor& tensor, Origin origin);

  /// An op outside of SAVE calls is about to read what is inside of `wrapper`, a tensor of a Python
  /// class; null: a slot or the user needs it. Sees to results of functional collectives.
  void read_inside(const at::Tensor& wrapper, const OpInfo* reader);

  /// A slot is about to be added for `tensor`, outside of SAVE calls.
  void before_slot(const at::Tensor& tensor);

  /// True if what autograd saves next may be a call's.
  bool takes_saved() const { return saving() || ended_.record; }

  /// `tensor` is about to get other memory.
  void before_set_data(const at::Tensor& tensor);

  /// The function has returned.
  void finish();

  /// An op outside of SAVE calls is about to run, or a SAVE call to begin.
  void go_on() {
    end_expected();
    if (C10_UNLIKELY(!read_by_thrown_.empty())) keep_read_by_thrown();
  }

  /// Hooks for what autograd saves then.
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks();

  /// Throws if a backward from `roots` passes a SAVE call: a replay could not follow it.
  void check_backward(const EdgeList& roots) const;

 private:
  c10::ArrayRef<at::Tensor> as_seen(c10::ArrayRef<at::Tensor> tensors,
                                    c10::SmallVector<at::Tensor, 2>& replaced) const;
  class Hook;
  static constexpr size_t kNone = ~size_t{0};
  enum class Open : uint8_t { kSaved, kInner, kRecomputed, kUnwatched };
  struct Written {
    at::Tensor tensor;
    Origin origin;
    size_t argument;
    bool required_grad = false;  // before the call
  };
  struct SavedCall;

  void check_call(const NamedCall& call) const;
  void enter_skipped(const CallResults& results);
  void begin_saved(c10::ArrayRef<at::Tensor> arguments);
  void end_saved(const CallResults& results);
  void close_saved() noexcept;
  void keep_read_by_thrown();
  /// Other code runs: what was expected to be saved will not be.
  void end_expected();
  CallOutput output_of(const at::Tensor& tensor, size_t position);
  void check_result(const at::Tensor& tensor, size_t position) const;
  size_t product_of(const at::Tensor& tensor);
  void add_write(const Written& written);
  void note_write(const OpInfo* op, const at::Tensor& tensor, Origin origin, bool joins_graph);
  void enter_made(const at::Tensor& tensor);
  std::optional<size_t> product_in(const at::Tensor& tensor) const;
  /// `reader`: null if recompute_needs_tensor() asks.
  void read_outside(const at::Tensor& tensor, Origin origin, const OpInfo* reader);
  void read_product(size_t number, const at::Tensor& tensor, const OpInfo* reader);
  KeepReason reason_for(const OpInfo* reader) const;
  void report_implicit(const CallProduct& product, const std::string& reader) const;
  /// Waits for collectives that still write the memory of `tensor`, which is about to be copied.
  void settle(const at::Tensor& tensor);
  void check_thrown() const;
  void check_exchanged() const;
  void note_work(const CallResults& results);
  void note_functional(c10::ArrayRef<at::Tensor> results);
  void settle_functional(const void* memory);
  bool is_of_collective(size_t product) const;
  void keep_for_host(const at::Tensor& tensor);
  void note_received(const OpInfo& op, const at::Tensor& tensor, Origin origin) const;
  void keep(CallProduct& product, const at::Tensor& tensor, KeepReason reason);
  void keep_copy(CallProduct& product, const at::Tensor& tensor);
  bool is_from_outside(const at::Tensor& tensor) const;
  bool may_store(const CallRecord& record, const at::Tensor& tensor) const;
  UserPair pair_for_saved(const CallRecord& record, const at::Tensor& tensor) const;
  void keep_result(CallProduct& product, const at::Tensor& tensor, c10::function_ref<void()> keep);
  bool is_argument_of_op(const at::Tensor& tensor) const;
  void pack_pending();
  void drop_pending() noexcept;
  SavedCall* call_that_saves(const at::Tensor& tensor);
  bool add_refill(SavedCall& call, const at::Tensor& tensor);
  std::string next_name(SavedCall& call, const at::Tensor& tensor);
  std::string where(const NamedCall& call) const;

  ForwardScope& scope_;
  const std::shared_ptr<Region> region_;
  const CallSettings& settings_;
  std::unordered_set<std::string_view> names_;  // in the records
  std::vector<Open> open_;                      // calls, the innermost last
  size_t recomputed_ = 0;                       // of them, how many are RECOMPUTE
  struct CallEnd {
    UserPair pair;  // of those opened in the region
    std::any context;
  };
  std::vector<CallEnd> ends_;                    // per call
  std::unordered_set<size_t> outside_in_graph_;  // outside storages that a call made part of it
  std::unordered_map<size_t, size_t> outside_products_;  // by outside storage, until it is read
  std::unordered_map<size_t, size_t> base_products_;     // what a written one was before

  /// A SAVE call that runs, or whose tensors are being saved right after it.
  struct SavedCall {
    CallRecord* record = nullptr;  // null: there is none
    size_t index = 0;
    std::vector<at::Tensor> arguments;
    std::vector<Written> written;
    FirstPosition<const void*> written_memory;  // of those
    /// First positions of arguments by address, theirs and their storage's; if there are many.
    mutable std::unordered_map<const void*, size_t> positions;
    size_t count = 0;  // of the tensors that autograd has saved for it

    bool has_written(const at::Tensor& tensor) const;
    /// The position of the argument that is `tensor`, or shares its storage; kNone if there is
    /// none.
    size_t argument_on_storage_of(const at::Tensor& tensor) const;
    size_t hashed_argument_on_storage_of(const at::Tensor& tensor) const;
  };
  SavedCall saved_;
  SavedCall ended_;
  std::vector<at::Tensor> expected_;  // what autograd will save for ended_, in order
  std::vector<std::string> expected_names_;
  std::vector<at::Tensor> read_by_thrown_;  // arguments of calls that threw, until the next op
  std::deque<std::pair<std::string, at::Tensor>> named_;  // in saved_

  // Of the SAVE call that runs.
  FirstPosition<const void*> op_memories_;  // of the arguments of the op that runs
  bool op_runs_ = false;
  ScopePlace place_;            // where the call began
  std::vector<Hook*> pending_;  // of what the op that runs saves, in order: see pack_pending()
  bool takes_part_ = false;  // it makes tensors on the memory of an opaque one from before the call
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::vector<at::Tensor> made_opaque_;    // without storage
  std::vector<GeneratorMark> generators_;  // before it
  // Of the innermost call, if an outer scope skips it, so that its ops are not seen.
  bool skipped_ = false;
  std::vector<at::Tensor> skipped_arguments_;

  struct Writing {
    c10::IValue work;
    bool is_receive;
    std::vector<const void*> memories;
  };
  std::vector<Writing> writing_;  // collectives that may not have ended
  struct Unread {
    at::Tensor tensor;
    size_t slot;  // the next one then
    c10::IValue work;
  };
  std::vector<Unread> unread_;                // of async collectives, for the host
  bool is_async_ = false;                     // the collective that runs
  std::vector<const KeptTensor*> exchanged_;  // have got other memory since
  size_t threw_writing_ = kNone;              // the call that threw where it may have written
  bool has_functional_ = false;  // collectives that return before their results are there
  // The results of each that nobody has waited for here.
  std::vector<std::vector<OutsideStorage::WeakTensor>> functional_;

  // Of all SAVE calls: storages that they made and that lived on, and sequence numbers of nodes.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> lived_on_;
  std::vector<std::pair<uint64_t, uint64_t>> nodes_;
};

}  // namespace remat
