// SPDX-License-Identifier: BSD-3-Clause

// Which storages a region has met, and where they come from.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <remat/tape/op_log.h>

namespace remat {

/// From a storage's address to its origin. Does not keep storages alive: an address that is used
/// again belongs to a storage made since, which is entered anew.
class StorageTable {
 public:
  /// kUnknown if it was not entered.
  Origin find(const c10::StorageImpl* storage) const {
    const auto entry = origins_.find(storage);
    return entry == origins_.end() ? Origin::unknown() : entry->second;
  }

  void enter(const c10::StorageImpl* storage, Origin origin) {
    origins_.insert_or_assign(storage, origin);
  }

  /// Enters it as made inside unless it is known: a view of a tensor from outside stays outside.
  void enter_result(const at::Tensor& tensor) {
    const c10::StorageImpl* const storage = storage_of(tensor);
    if (storage) origins_.emplace(storage, Origin::inside());
  }

 private:
  ska::flat_hash_map<const c10::StorageImpl*, Origin> origins_;
};

}  // namespace remat
