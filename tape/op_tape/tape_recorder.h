// SPDX-License-Identifier: BSD-3-Clause

// Writing a tape while a region's forward runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/first_position.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/op_call.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/region.h>
#include <remat/tape/segment_policies.h>
#include <remat/tape/storage_table.h>
#include <remat/tape/tape.h>

#include "tape_cutter.h"

namespace remat {

/// Told by a ForwardScope of each op, of what is made unseen, and of each slot. Gives up, for good,
/// at what a tape cannot replay: Tape::failure() says what.
class TapeRecorder final : public SegmentPolicies {
 public:
  struct Options {
    TrustedOps trusted{};                                    ///< See Note [Trusting a tape].
    const std::vector<at::Generator>* generators = nullptr;  ///< Beyond the default ones; null: no
                                                             ///< generator is restored.
    std::string strict_label{};  ///< Of the region, if giving up is an error.
  };
  TapeRecorder(Tape& tape, StorageTable& storages, Options options)
      : tape_(tape), storages_(storages), options_(std::move(options)) {
    tape_.has_hashes_ = options_.trusted.empty();
  }
  TapeRecorder(const TapeRecorder&) = delete;
  TapeRecorder& operator=(const TapeRecorder&) = delete;

  /// The tape is cut by `cutter`. Once, before the first op.
  void cut(std::unique_ptr<TapeCutter> cutter) { cutter_ = std::move(cutter); }
  /// Null if it is not cut.
  const TapeCutter* cutter() const { return cutter_.get(); }

  // Of a tape that is cut: a segment may begin with the op that is about to run.
  const RegionPolicy* enter() override {
    enter_segment();
    return cutter_->policy();
  }
  void save_next(Policy policy) override { op_.save_next = policy; }
  void save_results(const OpCall& call, Policy policy) override;

  /// True while an op runs that it was told of.
  bool in_op() const { return op_.runs; }
  /// True while it looks at what an op has left.
  bool op_has_run() const { return op_.has_run; }

  bool gave_up() const { return !tape_.failure_.empty(); }
  /// Giving up is an error.
  bool is_strict() const { return !options_.strict_label.empty(); }
  /// `what` it met: "op aten::resize_: memory that changes its size". Throws NotImplementedError if
  /// the region has no other way to be replayed.
  void give_up(const std::string& what);

  /// The op that is about to run is handled by a dispatch mode that the function has opened, which
  /// may compute something else: see Note [Trusting a tape].
  void note_mode();
  /// It is to run under another setting than the region began with.
  void note_settings(const OpCall& call);
  /// The op is to run on another stream or device than the region began with.
  void note_streams(const OpCall& call);
  /// The scope has looked at the arguments: all of them are in its table.
  void before_op(const OpCall& call);
  void after_op(const OpCall& call);

  /// The same of an op on tensors of Python classes, in whose place those come that its handler
  /// calls; it has run.
  void begin_handled(const OpCall& call);
  void end_handled();
  /// The same of one that has thrown.
  void drop_handled() { handled_ = {}; }

  /// An op of a SAVE call is about to write `tensor`.
  void before_saved_write(const at::Tensor& tensor);

  /// `tensor` was made inside by code that is not seen: the tape holds it.
  void adopt(const at::Tensor& tensor);

  /// The same, and nobody has written it: the op that is about to run overwrites it.
  void adopt_memory(const at::Tensor& tensor);

  /// A SAVE call has written the outside storage; or its value is the one that is kept from before
  /// the region's writes.
  void set_outside(size_t number, size_t product);
  void reset_outside(size_t number);

  /// The next slot of the region, or of the open segment, is for `tensor`.
  void add_slot(const at::Tensor& tensor);
  /// It is for `copy`, of all bytes that the storage of `original` has now; `after_op`: as the op
  /// that runs leaves it.
  void add_copy_slot(const at::Tensor& copy, const at::Tensor& original, bool after_op);

  /// The function has returned. Drops what no slot needs and takes hold of what is needed from
  /// outside; `arguments` are held by somebody else. To be called where remat's own tensors are
  /// kept: see OuterScopes.
  void finish(OutsideLog& outside);

 private:
  struct Write {
    at::Tensor tensor;
    uint32_t before;
    const void* memory;
    Origin origin;
  };

  /// Of what a record has made or written, as LibTorch counts writes.
  struct Version {
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    uint32_t left = 0;
  };

  struct NewSlot {
    size_t part;    // that was open
    size_t index;   // in it
    size_t number;  // of all of a tape that is cut
  };

  static constexpr size_t kMostBytes = 4096;
  static constexpr size_t kMostBytesOfPart = size_t{4}
                                             << 20;  // where an op writes parts (x[i] = y)
  static constexpr const char* kUnwrittenPart =
      "more than 4 MiB that no op wrote, after empty(), of which it writes parts";
  static constexpr const char* kUnwritten = "more than 4,096 bytes that no op wrote, after empty()";

  void enter_segment() {
    const size_t number = tape_.records().size();
    if (!gave_up() && !op_.runs && cutter_->begins(number)) cutter_->enter_next(number);
  }
  static const char* unsupported(const at::Tensor& tensor);
  void add_wrapper_slot(const at::Tensor& wrapper);
  void fill_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper);
  void cut_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper);
  at::Tensor part_made(const at::Tensor& wrapper);
  std::shared_ptr<const TapeWrapper> take_apart(const at::Tensor& wrapper);
  TapeSlot part_of_wrapper(const at::Tensor& part);
  void give_up(const OpCall& call, const char* what);
  /// Throws if giving up is an error.
  void refuse_if_strict() const;
  bool is_new(const void* memory) const;
  TapeRef ref_of(const at::Tensor& tensor);  // undefined if it is unsupported
  uint32_t value_of(const at::Tensor& tensor);
  uint32_t last_value_of(const at::Tensor& tensor);
  uint32_t add_value(TapeValue::Source source, size_t number);
  uint32_t add_held(const at::Tensor& tensor);
  uint32_t layout_of(const at::Tensor& tensor, TapeValue& value);
  void enter(const at::Tensor& tensor, uint32_t value);
  void note_version(const at::Tensor& tensor, uint32_t value);
  bool is_written_unseen(uint32_t value) const;
  uint32_t hold_written_unseen(const at::Tensor& tensor);
  void add_argument(const OpCall& call, size_t i);
  void add_ref(const OpCall& call, size_t i, const at::Tensor& tensor);
  void make_memory_here(const at::Tensor& tensor, TapeRef& ref);
  uint32_t add_memory(const at::Tensor& tensor);
  bool hold_unwritten(const at::Tensor& tensor, TapeRef& ref, size_t most);
  void note_write(const at::Tensor& tensor, uint32_t value);
  void keep_value(const at::Tensor& tensor, uint32_t value);
  void add_made(const OpCall& call);
  void add_results(const OpCall& call);
  void add_output(const OpCall& call, const at::Tensor& tensor, size_t result, size_t element);
  void adopt_parts(const at::Tensor& wrapper);
  void add_writes(const OpCall& call);
  void note_made(size_t result, uint32_t value, const at::Tensor& tensor);
  void end_record();
  void drop_record();
  size_t part_number() const { return cutter_ ? cutter_->unit() : 0; }
  TapePart& part() { return tape_.parts_[part_number()]; }
  TapeRef given_ref(const at::Tensor& tensor) const;
  bool is_of_last_record(uint32_t value) const;
  NewSlot new_slot();
  void resolve_pending();
  bool is_outside(const at::Tensor& tensor) const;
  void save_value(const at::Tensor& tensor, Policy policy);
  void resolve_copy(const NewSlot& slot, const at::Tensor& copy, const at::Tensor& original);
  void resolve(const NewSlot& slot, const at::Tensor& tensor, TapeRef found, bool in_op);
  void hold_slot(const NewSlot& slot, const at::Tensor& tensor);
  std::vector<bool> needed_values() const;
  void drop_tail(const std::vector<bool>& needed);
  void drop_held(const std::vector<bool>& needed);
  void hold_outside(OutsideLog& outside, const std::vector<bool>& needed);
  static void hold_whole(Tape::Outside& outside, const at::Tensor& tensor);
  void hold_slots();

  Tape& tape_;
  StorageTable& storages_;
  std::vector<at::Tensor> outside_tensors_;  // by number; undefined if no op read it
  std::vector<uint32_t> outside_values_;     // by number; the one that it holds now
  std::vector<uint32_t> product_values_;
  std::vector<Version> versions_;  // by value: as its record has left it
  Options options_;
  std::unique_ptr<TapeCutter> cutter_;
  uint32_t last_layout_ = TapeValue::kNone;
  struct PendingSlot {
    NewSlot slot;
    at::Tensor tensor;
    at::Tensor original;  // undefined if `tensor` is no copy
  };
  struct Op {
    bool runs = false;
    bool has_run = false;
    bool makes_views = false;
    std::optional<Policy> save_next;
    TapeRecord record{};
    c10::SmallVector<TapeRef, 8> given;  // arguments
    FirstPosition<const c10::TensorImpl*> given_tensors;
    c10::SmallVector<Write, 2> written;
    FirstPosition<uint32_t> written_values;
    std::vector<GeneratorState> states;  // before it
    c10::SmallVector<PendingSlot, 4> pending;
  };
  Op op_;  // that runs
  struct Handled {
    bool runs = false;
    std::vector<at::Tensor> written;  // arguments
    std::vector<std::pair<NewSlot, at::Tensor>> pending;
  };
  Handled handled_;  // that runs
  struct HeldSlot {
    size_t part;
    size_t slot;
    at::Tensor tensor;
  };
  std::vector<HeldSlot> held_slots_;
};

}  // namespace remat
