// SPDX-License-Identifier: BSD-3-Clause

// A process-wide table of facts about objects, for as long as the objects live.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace remat {

/// True if only the table still holds this version counter.
inline bool is_gone(const c10::VariableVersion& counter) {
  return counter.unique();
}
template <class Target, class Null>
bool is_gone(const c10::weak_intrusive_ptr<Target, Null>& object) {
  return object.expired();
}

/// Maps the addresses of objects to a `Value`. A `Hold` (a version counter or a weak pointer) keeps
/// the address from being reused; some later change() drops entries whose objects are gone.
/// Leak the instance, because tensors may die after static objects. Usable from any thread; the
/// callbacks run under a lock.
template <class Hold, class Value>
class OwnerTable {
 public:
  /// Entries are not swept while there are fewer than `few`.
  explicit OwnerTable(size_t few) : few_(few), most_(few) {}

  /// Calls `change` with the value at `address`, a new Value() if there was none.
  template <class Change>
  void change(const void* address, const Hold& hold, const Change& change) {
    std::vector<std::pair<Hold, Value>> gone;  // Destroyed after the lock is released.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (entries_.size() >= most_) sweep(gone);
    change(entries_.try_emplace(address, hold, Value()).first->second.second);
  }

  /// Calls `read` with the value at `address`, if there is one.
  template <class Read>
  void read(const void* address, const Read& read) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(address);
    if (entry != entries_.end()) read(entry->second.second);
  }

 private:
  void sweep(std::vector<std::pair<Hold, Value>>& gone) {
    std::erase_if(entries_, [&](auto& entry) {
      if (!is_gone(entry.second.first)) return false;
      gone.push_back(std::move(entry.second));
      return true;
    });
    most_ = std::max(few_, 2 * entries_.size());
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::pair<Hold, Value>> entries_;
  const size_t few_;
  size_t most_;
};

}  // namespace remat
