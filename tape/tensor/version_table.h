// SPDX-License-Identifier: BSD-3-Clause

// A process-wide table of facts about memory, keyed by version counter.
#pragma once

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>

#include <remat/tape/tensor_meta.h>

namespace remat {

/// Maps version counters to a `Value`, as long as somebody else holds the counter. Leak the
/// instance: tensors may die after static objects. Usable from any thread; the callbacks run under
/// a lock.
template <typename Value>
class VersionTable {
 public:
  /// Unused counters are not swept while there are fewer than `few` entries.
  explicit VersionTable(size_t few) : few_(few), most_(few) {}

  /// Calls `change` with the counter's value, which is new if it had none.
  template <typename Change>
  void change(const c10::VariableVersion& counter, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (entries_.size() >= most_) sweep();
    change(
        entries_.try_emplace(version_counter_of(counter), Entry{counter, {}}).first->second.value);
  }

  /// Calls `read` with the value for `versions` (from version_counter_of()), if there is one.
  template <typename Read>
  void read(const void* versions, const Read& read) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(versions);
    if (entry != entries_.end()) read(entry->second.value);
  }

 private:
  struct Entry {
    c10::VariableVersion counter;  // Kept so that its address is not reused.
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
