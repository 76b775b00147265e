// SPDX-License-Identifier: BSD-3-Clause

// What the process remembers of memory, by its versions.
#pragma once

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>

#include <remat/tape/tensor_meta.h>

namespace remat {

/// A `Value` for each version counter, as long as somebody else has that. Make one that is leaked:
/// tensors may die after static objects. From any thread; the callbacks run under a lock.
template <typename Value>
class VersionTable {
 public:
  /// Those that nobody else has are not looked for among fewer than `few`.
  explicit VersionTable(size_t few) : few_(few), most_(few) {}

  /// Calls `change` with the value of the counter, a new one if it has none.
  template <typename Change>
  void change(const c10::VariableVersion& counter, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (entries_.size() >= most_) sweep();
    change(
        entries_.try_emplace(version_counter_of(counter), Entry{counter, {}}).first->second.value);
  }

  /// Calls `read` with the value, if there is one, of what version_counter_of() says.
  template <typename Read>
  void read(const void* versions, const Read& read) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(versions);
    if (entry != entries_.end()) read(entry->second.value);
  }

 private:
  struct Entry {
    c10::VariableVersion counter;  // its address stays taken
    Value value;
  };

  void sweep() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.counter.unique(); });
    most_ = std::max(few_, 2 * entries_.size());
  }

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Entry> entries_;
  const size_t few_;
  size_t most_;
};

}  // namespace remat
