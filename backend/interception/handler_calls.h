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

/// Counts each tensor inside the op's results as made by the op, because factories that a handler
/// calls are not observed. Leaves out memory in `given`, which is from inner_memory().
void adopt_inner_results(const OpCall& call, c10::DispatchKeySet below,
                         const std::vector<const void*>& given);

/// Note [Writes of handlers]: a replay runs handlers again without shadows (copies to write to), so
/// their writes would be repeated. A write is refused unless the memory dies before the op ends,
/// was made in the region, or is written or returned by the op itself. Writes of modes that were
/// active before the region began do not count, because a replay does not run these modes.
/// Construct the object before the op runs.
class HandlerWrites {
 public:
  HandlerWrites(const OpCall& call, c10::DispatchKeySet below);
  HandlerWrites(const HandlerWrites&) = delete;
  HandlerWrites& operator=(const HandlerWrites&) = delete;
  ~HandlerWrites();

  /// Notes the writes of `call`, an op that the handler calls.
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

/// Notes the writes of an op if a handler calls the op; otherwise does nothing.
void note_handler_writes(const OpCall& call);

}  // namespace remat
