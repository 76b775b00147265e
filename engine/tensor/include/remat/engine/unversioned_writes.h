// SPDX-License-Identifier: BSD-3-Clause

// Writes by ops that autograd does not notice.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Note [Writes without a version]: some ops write arguments and give them no new version: batch
/// norm its running statistics, observers their scales, fused optimizers their weights. In
/// backward, plain autograd reads the saved tensor's present value, whereas a replay recomputes the
/// value at the time of saving. So writes are numbered process-wide, each slot notes the last write
/// that had begun, and a slot whose tensor was written since without a new version raises in
/// backward. Batch norm in training saves the statistics that it writes and never reads them again,
/// so the slots of these statistics skip this check.
///
/// Construct it before an op that writes arguments, and call finish() after the op, on one thread.
class REMAT_API UnversionedWrites {
 public:
  /// A number greater than that of any write.
  static constexpr uint64_t kNever = ~uint64_t{0};

  explicit UnversionedWrites(const OpCall& call);
  UnversionedWrites(const UnversionedWrites&) = delete;
  UnversionedWrites& operator=(const UnversionedWrites&) = delete;
  ~UnversionedWrites();

  /// Records what the op has written without a new version.
  void finish() const;

  /// Returns the number that a slot for `tensor` notes: the number of the last write that has
  /// begun, or kNever if the running op writes `tensor` without an alias mark in its schema.
  static uint64_t last(const at::Tensor& tensor);

  /// Allocates a number for a write that is not made by an op.
  static uint64_t next();

  /// The op that, after write number `last`, has written a tensor with this version counter without
  /// a new version; null if there is none. Usable from any thread.
  static const OpInfo* find_after(uint64_t last, const void* versions);

 private:
  struct Written {
    c10::VariableVersion counter;
    uint32_t version;
    bool is_marked;  // True if the schema marks the argument as written.
  };

  const OpInfo* info_;
  uint64_t number_;
  c10::SmallVector<Written, 2> written_;
  const UnversionedWrites* outer_;
};

}  // namespace remat
