// SPDX-License-Identifier: BSD-3-Clause

// Writes of ops of which autograd is not told.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Note [Writes without a version]: some ops write arguments and give them no new version: batch
/// norm its running statistics, observers their scales, fused optimizers their weights. Autograd
/// goes on with what a saved tensor has in backward, where a replay makes what it had when it was
/// saved. So each write has a number of the process, a slot notes the last one that had begun, and
/// a slot whose tensor has been written since without a version raises in backward. Batch norm in
/// training saves the statistics that it writes, and does not look at them again: their slots do
/// not ask.
///
/// While alive, an op writes arguments; finish() once it has. On one thread.
class REMAT_API UnversionedWrites {
 public:
  /// A number after all others.
  static constexpr uint64_t kNever = ~uint64_t{0};

  explicit UnversionedWrites(const OpCall& call);
  UnversionedWrites(const UnversionedWrites&) = delete;
  UnversionedWrites& operator=(const UnversionedWrites&) = delete;
  ~UnversionedWrites();

  /// Notes what it has written without a new version.
  void finish() const;

  /// What a slot notes of `tensor`: the number of the last write that has begun; kNever if the op
  /// that runs writes it without saying so.
  static uint64_t last(const at::Tensor& tensor);

  /// The number of a write that is no op.
  static uint64_t next();

  /// The op that has written a tensor with these versions after the write `last`, without a new
  /// one; null if none has. From any thread.
  static const OpInfo* find_after(uint64_t last, const void* versions);

 private:
  struct Written {
    c10::VariableVersion counter;
    uint32_t version;
    bool is_marked;  // in the schema
  };

  const OpInfo* info_;
  uint64_t number_;
  c10::SmallVector<Written, 2> written_;
  const UnversionedWrites* outer_;
};

}  // namespace remat
