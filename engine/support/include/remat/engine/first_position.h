// SPDX-License-Identifier: BSD-3-Clause

// A list of keys that finds the first position of a key quickly, however long the list is.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <optional>
#include <unordered_map>

namespace remat {

/// A list of keys (addresses, numbers) that returns the first position of each. Short lists are
/// searched without an allocation; long ones are hashed, so that n lookups cost O(n).
template <class Key>
class FirstPosition {
 public:
  void add(Key key) {
    keys_.push_back(key);
    if (keys_.size() <= kFew) return;
    for (size_t i = hashed_; i < keys_.size(); ++i) first_.try_emplace(keys_[i], i);
    hashed_ = keys_.size();
  }

  std::optional<size_t> find(Key key) const {
    if (keys_.size() > kFew) {
      const auto entry = first_.find(key);
      return entry == first_.end() ? std::nullopt : std::optional(entry->second);
    }
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] == key) return i;
    }
    return std::nullopt;
  }

  bool contains(Key key) const { return find(key).has_value(); }
  size_t size() const { return keys_.size(); }

  void clear() {
    keys_.clear();
    if (hashed_ > 0) first_ = {};  // first_.clear() would walk all buckets.
    hashed_ = 0;
  }

 private:
  static constexpr size_t kFew = 8;

  c10::SmallVector<Key, kFew> keys_;
  std::unordered_map<Key, size_t> first_;  // Filled once there are more than kFew keys.
  size_t hashed_ = 0;
};

}  // namespace remat
