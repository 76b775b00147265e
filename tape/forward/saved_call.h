// SPDX-License-Identifier: BSD-3-Clause

// A SAVE call of a forward that runs, or has just run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <remat/tape/call_log.h>
#include <remat/tape/first_position.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/op_log.h>
#include <remat/tape/storage_table.h>

namespace remat {

struct SavedCall {
  static constexpr size_t kNone = ~size_t{0};

  /// What it has written of what it has not made.
  struct Written {
    at::Tensor tensor;
    Origin origin;
    size_t argument;             ///< That has the memory; kNone if none has.
    bool required_grad = false;  ///< Before the call.
  };

  CallRecord* record = nullptr;  ///< Null: there is none.
  size_t index = 0;              ///< Of the record.
  std::vector<at::Tensor> arguments{};
  std::vector<Written> written{};
  FirstPosition<const void*> written_memory{};  ///< Of those.
  std::vector<GeneratorMark> generators{};      ///< Before it.
  size_t count = 0;                             ///< Of the tensors that autograd has saved for it.

  /// What it holds; see Note [What dies with a SAVE call].
  struct Held {
    std::vector<at::Tensor> arguments{};
    std::vector<Written> written{};
  };
  /// There is none any more. Returns what it held.
  [[nodiscard]] Held clear() noexcept;

  bool has_written(const at::Tensor& tensor) const;

  /// The position of the argument that is `tensor`, or shares its storage; kNone if there is none.
  size_t argument_on_storage_of(const at::Tensor& tensor) const;

 private:
  size_t hashed_argument_on_storage_of(const at::Tensor& tensor) const;

  /// First positions of arguments by address, theirs and their storage's; if there are many.
  mutable std::unordered_map<const void*, size_t> positions_{};
};

/// The op of a SAVE call that runs.
struct SavedOp {
  bool runs = false;
  FirstPosition<const void*> memories{};  ///< Of its arguments.
  /// It makes tensors on the memory of an opaque one from before the call.
  bool takes_part = false;

  bool has_argument(const at::Tensor& tensor) const;

  /// True if `tensor`, which the call uses, was there before the region. What only SAVE calls have
  /// read is in no table: it is unknown like the result of the op that runs.
  bool is_from_outside(const at::Tensor& tensor, const StorageTable& storages) const;
};

}  // namespace remat
