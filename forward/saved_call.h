// SPDX-License-Identifier: BSD-3-Clause

// The running SAVE call of a forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/first_position.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/op_log.h>
#include <remat/engine/storage_table.h>

namespace remat {

struct SavedCall {
  static constexpr size_t kNone = ~size_t{0};

  /// A tensor that the call has written but not made.
  struct Written {
    at::Tensor tensor;
    Origin origin;
    size_t argument;             ///< Its position among the arguments, or kNone.
    bool required_grad = false;  ///< requires_grad before the call.
  };

  CallRecord* record = nullptr;  ///< Null if no call is running.
  size_t index = 0;              ///< Index of the record.
  std::vector<at::Tensor> arguments{};
  std::vector<Written> written{};
  FirstPosition<const void*> written_memory{};  ///< Memory of `written`.
  std::vector<GeneratorMark> generators{};      ///< Marks from before the call.
  size_t count = 0;                             ///< Number of tensors that autograd saved.

  bool op_runs = false;
  FirstPosition<const void*> op_memory{};  ///< Memory of the running op's arguments.
  /// True if the running op makes tensors on memory of an opaque tensor from before the call.
  bool op_makes_part = false;

  /// Call it when the call is over. Moves the tensors that the call held to `dying`; see Note [What
  /// dies with a SAVE call].
  void clear(std::vector<at::Tensor>& dying) noexcept;

  bool has_written(const at::Tensor& tensor) const;

  /// Position of the argument that is `tensor`, or else of one that shares its storage; else kNone.
  size_t argument_on_storage_of(const at::Tensor& tensor) const;

  bool op_has_argument(const at::Tensor& tensor) const {
    return op_runs && op_memory.contains(memory_of(tensor));
  }

  /// True if `tensor`, which the call uses, existed before the region. If its origin is unknown,
  /// the tensor either existed and only SAVE calls have read it, or is a new result of the running
  /// op. A new result is not among the op's arguments.
  bool is_from_outside(const at::Tensor& tensor, const StorageTable& storages) const;

 private:
  size_t hashed_argument_on_storage_of(const at::Tensor& tensor) const;

  /// Argument positions by the addresses of tensors and storages. Empty if there are few arguments.
  mutable std::unordered_map<const void*, size_t> positions_{};
};

}  // namespace remat
