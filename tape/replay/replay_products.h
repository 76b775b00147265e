// SPDX-License-Identifier: BSD-3-Clause

// What SAVE calls have left for a replay.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// Results of calls that a replay leaves out, and what these have written: values that are kept, or
/// memory in their place.
class ReplayProducts {
 public:
  /// Unpacks what is kept, which may replay outer regions: make it before the scope of the replay.
  /// What the user has is asked for when a call is left out, with the state that the thread has
  /// now. `storages`: of the replay.
  ReplayProducts(const Region& region, StorageTable& storages);
  ReplayProducts(const ReplayProducts&) = delete;
  ReplayProducts& operator=(const ReplayProducts&) = delete;

  /// A result of a skipped call: on the value that is kept, or a placeholder.
  at::Tensor on_product(size_t number, const TensorLayout& layout);
  /// A skipped call has written the storage of an argument: puts the value there that is kept of
  /// it, if one is.
  void put_inside(const c10::Storage& storage, size_t number);
  /// Undefined if none is kept.
  const at::Tensor& value_of(size_t number);

  /// Throws if the op reads or writes a product as no op of the forward did. `slot`: the slot to be
  /// filled next, for messages.
  void check(const OpCall& call, size_t slot) const;

 private:
  struct Product {
    CallProduct::Held held;   // of the user's, until it is asked for
    at::Tensor value;         // kept
    c10::Storage storage;     // what has its place in this replay
    bool unreadable = false;  // memory without its value
  };

  void check_argument(const OpCall& call, size_t argument, size_t number, size_t slot) const;
  const NamedCall& call_of(size_t number) const;
  c10::Storage storage_in_place_of(size_t number);
  at::Tensor unpack(size_t number, const CallProduct::Held& held) const;

  const Region& region_;
  StorageTable& storages_;
  std::vector<Product> products_;                     // by number
  std::optional<at::ThreadLocalState> state_before_;  // if the user has any of them
  std::vector<at::Tensor> opaque_;                    // results, so that their addresses stay taken
};

}  // namespace remat
