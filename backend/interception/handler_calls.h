// SPDX-License-Identifier: BSD-3-Clause

// What handlers of Python's (__torch_dispatch__ of tensor subclasses and of modes) make and write.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <string>
#include <vector>

#include <remat/tape/op_call.h>

namespace remat {

/// What is in the results of an op, and was not in its arguments, was made by the op: the handler's
/// factories are not seen. Made before the op runs.
class HandlerResults {
 public:
  HandlerResults(const OpCall& call, c10::DispatchKeySet below);

  /// The op has run.
  void adopt() const;

 private:
  const OpCall& call_;
  bool may_be_;
  std::vector<const void*> given_;
};

/// Note [Writes of handlers]: a replay calls handlers again that the function has, and of what they
/// write it gives them no shadow. So such a write is refused, unless the memory is gone with the
/// handler, was made in the region, or belongs to what the op itself writes. A mode that was there
/// when the region began is not there in the replay. Made before the op runs.
class HandlerWrites {
 public:
  HandlerWrites(const OpCall& call, c10::DispatchKeySet below);
  HandlerWrites(const HandlerWrites&) = delete;
  HandlerWrites& operator=(const HandlerWrites&) = delete;
  ~HandlerWrites();

  /// A handler calls an op that writes.
  void note(const OpCall& call);

  /// The op has run. Throws NotImplementedError.
  void check() const;

 private:
  struct Write {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::string op;
    int64_t modes;  // while it was handled
  };

  const OpCall& call_;
  bool may_be_;
  HandlerWrites* outer_ = nullptr;
  std::vector<const void*> own_;  // what the op writes
  std::vector<Write> writes_;
};

/// An op runs that is part of another one.
void note_handler_writes(const OpCall& call);

}  // namespace remat
