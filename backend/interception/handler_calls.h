// SPDX-License-Identifier: BSD-3-Clause

// Results and writes of Python handlers (__torch_dispatch__ of tensor subclasses and of modes).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <string>
#include <vector>

#include <remat/engine/op_call.h>

namespace remat {

/// Storages of the tensors inside the op's wrapper arguments. Call it before the op runs. Empty if
/// no Python handler will be called for the op.
std::vector<const void*> inner_memory(const OpCall& call, c10::DispatchKeySet below);

/// Counts each tensor inside the op's results as made by the op, unless its memory is in `given`,
/// which inner_memory() returned before: nothing else sees the factories that a handler calls.
void adopt_inner_results(const OpCall& call, c10::DispatchKeySet below,
                         const std::vector<const void*>& given);

/// Note [Writes of handlers]: a replay calls handlers of the function again, and gives them no
/// shadows for what they write. So a handler's write is refused, unless the memory is freed with
/// the handler, was made in the region, or belongs to what the op itself writes. Modes that were
/// active before the region began are not active in the replay, so their writes do not count.
/// Construct it before the op runs.
class HandlerWrites {
 public:
  HandlerWrites(const OpCall& call, c10::DispatchKeySet below);
  HandlerWrites(const HandlerWrites&) = delete;
  HandlerWrites& operator=(const HandlerWrites&) = delete;
  ~HandlerWrites();

  /// A handler calls an op that writes.
  void note(const OpCall& call);

  /// Call it when the op has run. Throws NotImplementedError if a write is refused.
  void check() const;

 private:
  struct Write {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::string op;
    int64_t modes;  // Number of dispatch modes active in the handler.
  };

  const OpCall& call_;
  bool may_be_;
  HandlerWrites* outer_ = nullptr;
  std::vector<const void*> own_;  // Memory that the op writes.
  std::vector<Write> writes_;
};

/// Notes the writes of an op that a handler calls; does nothing outside of handlers.
void note_handler_writes(const OpCall& call);

}  // namespace remat
