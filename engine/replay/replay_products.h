// SPDX-License-Identifier: BSD-3-Clause

// The products of SAVE calls in a replay.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/storage_table.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

/// In a replay, the results of calls that are left out, and the memory that these calls wrote in
/// the forward: kept values, or memory without values in their place.
class ReplayProducts {
 public:
  /// Unpacks the kept values, which may replay outer regions. So construct it before the replay's
  /// scope. Values that user hooks have are unpacked when a call is left out, under the thread
  /// state at construction. `storages` is the replay's table.
  ReplayProducts(const Region& region, StorageTable& storages);
  ReplayProducts(const ReplayProducts&) = delete;
  ReplayProducts& operator=(const ReplayProducts&) = delete;

  /// Returns a result of a skipped call: on the kept value, or a placeholder.
  at::Tensor on_product(size_t number, const TensorLayout& layout);
  /// Call it when a skipped call has written the storage of an argument. Copies the kept value
  /// there, if there is one.
  void put_inside(const c10::Storage& storage, size_t number);
  /// The kept value; undefined if none is kept.
  const at::Tensor& value_of(size_t number);

  /// Throws if the op reads or writes a product in a way that no op of the forward did. `slot` is
  /// the next slot to be filled, for messages.
  void check(const OpCall& call, size_t slot) const;

 private:
  struct Product {
    CallProduct::Held held;   // A value that user hooks have, until unpacked.
    at::Tensor value;         // The kept value.
    c10::Storage storage;     // Storage of the product in this replay.
    bool unreadable = false;  // True for memory without the value.
  };

  void check_argument(const OpCall& call, size_t argument, size_t number, size_t slot) const;
  const NamedCall& call_of(size_t number) const;
  c10::Storage storage_in_place_of(size_t number);
  at::Tensor unpack(size_t number, const CallProduct::Held& held) const;

  const Region& region_;
  StorageTable& storages_;
  std::vector<Product> products_;                     // By number.
  std::optional<at::ThreadLocalState> state_before_;  // Set if user hooks have any value.
  std::vector<at::Tensor> opaque_;                    // Results, to reserve their addresses.
};

}  // namespace remat
