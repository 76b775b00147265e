// SPDX-License-Identifier: BSD-3-Clause

// The values of a tape that is being recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/storage_table.h>
#include <remat/tape/tape.h>

namespace remat {

inline uint32_t narrow(size_t number) {
  return static_cast<uint32_t>(number);
}

/// Limit on memory that no op has written and that a tape holds a copy of. If the op that uses the
/// memory writes a part of it (x[i] = y), the limit is kMaxUnwrittenBytesOfPart.
constexpr size_t kMaxUnwrittenBytes = 4096;
constexpr size_t kMaxUnwrittenBytesOfPart = size_t{4} << 20;
constexpr const char* kUnwritten = "more than 4,096 bytes that no op wrote, after empty()";

/// Knows which memory has which value, and holds tensors that no record makes. Gives up for good at
/// the first op or tensor that a tape cannot replay; Tape::failure() then has the reason.
class ValueRecorder {
 public:
  /// `strict_label`: the region's label, if giving up is an error.
  ValueRecorder(Tape& tape, StorageTable& storages, std::string strict_label)
      : tape_(tape), storages_(storages), strict_label_(std::move(strict_label)) {}
  ValueRecorder(const ValueRecorder&) = delete;
  ValueRecorder& operator=(const ValueRecorder&) = delete;

  void mark_cut() { is_cut_ = true; }

  bool gave_up() const { return !tape_.failure_.empty(); }
  bool is_strict() const { return !strict_label_.empty(); }
  /// `what` names the obstacle, such as "op aten::resize_: memory that changes its size". Throws
  /// NotImplementedError if is_strict(), because nothing else can replay the region.
  void give_up(const std::string& what);
  void give_up(const OpCall& call, const char* what);
  void refuse_if_strict() const;

  /// Returns the kind of `tensor` if no tape can have a tensor of that kind; else null.
  static const char* unsupported(const at::Tensor& tensor);
  /// True if the memory has no value yet.
  bool is_new(const void* memory) const;
  bool is_outside(const at::Tensor& tensor) const;

  /// The present value of the tensor's memory; kNone if its origin is unknown.
  uint32_t value_of(const at::Tensor& tensor);
  /// The tensor as a value and a layout; undefined if it is unsupported or its origin is unknown.
  TapeRef ref_of(const at::Tensor& tensor);
  /// `value` in the layout of `tensor`.
  TapeRef ref_in(uint32_t value, const at::Tensor& tensor);

  /// add_made(): adds a value for memory that the current record has made. add_written(): adds one
  /// for memory that the record has written.
  uint32_t add_made(const at::Tensor& tensor, bool is_uninitialised);
  uint32_t add_written(const at::Tensor& tensor, Origin origin);
  /// Adds a TapeMemory, which the open unit allocates for `tensor` in place of value `original`.
  uint32_t add_memory(const at::Tensor& tensor, uint32_t original = TapeValue::kNone);

  /// Holds `tensor`, which code of the region has made with ops that remat does not see.
  void adopt(const at::Tensor& tensor);
  /// Adopts the inner tensors of `wrapper`, which an op on plain tensors has made, such as the op
  /// that wraps a collective's result.
  void adopt_parts(const at::Tensor& wrapper);
  /// Like adopt(), but without holding bytes, because the next op overwrites the unwritten memory.
  void adopt_memory(const at::Tensor& tensor);

  /// set_outside(): a SAVE call has written outside storage `number`, whose bytes are CallProduct
  /// `product` now. reset_outside(): the bytes from before the region's writes have been put back.
  void set_outside(size_t number, size_t product);
  void reset_outside(size_t number);

  /// If no op has written the memory of `tensor`, holds a copy and makes `ref` the copy's value.
  /// LibTorch makes such tensors of host numbers, for an index or a scalar. Returns false if the
  /// memory is larger than `max_bytes`.
  bool hold_unwritten(const at::Tensor& tensor, TapeRef& ref, size_t max_bytes);

  /// Call it before a write to `tensor`, which has `value`. If the tape holds an alias of `tensor`,
  /// replaces the alias by a copy.
  void before_write(const at::Tensor& tensor, uint32_t value);
  void note_version(const at::Tensor& tensor, uint32_t value);

  /// Call it when the function has returned, under HiddenScopes. Keeps tensors from outside whose
  /// values are `needed` (one entry per value), and drops held tensors whose values are not.
  void finish(OutsideLog& outside, const std::vector<bool>& needed);

 private:
  /// A tensor's version counter, and the counter's version after the record that made the value.
  struct Version {
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    uint32_t left = 0;
  };

  uint32_t last_value_of(const at::Tensor& tensor);
  uint32_t add_value(TapeValue::Source source, size_t number);
  uint32_t add_held(const at::Tensor& tensor);
  uint32_t layout_of(const at::Tensor& tensor, TapeValue& value);
  void enter(const at::Tensor& tensor, uint32_t value);
  bool is_written_unseen(uint32_t value) const;
  uint32_t hold_written_unseen(const at::Tensor& tensor);
  void hold_outside(OutsideLog& outside, const std::vector<bool>& needed);
  static void hold_whole(Tape::Outside& outside, const at::Tensor& tensor);

  Tape& tape_;
  StorageTable& storages_;
  const std::string strict_label_;
  bool is_cut_ = false;
  std::vector<at::Tensor> outside_tensors_;  // Per OutsideStorage; undefined if never read.
  std::vector<uint32_t> outside_values_;     // Per OutsideStorage; the present value.
  std::vector<uint32_t> product_values_;
  std::vector<Version> versions_;  // By value.
  uint32_t last_layout_ = TapeValue::kNone;
};

}  // namespace remat
