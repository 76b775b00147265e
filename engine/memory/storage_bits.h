// SPDX-License-Identifier: BSD-3-Clause

// A set of storages that may give false positives.
#pragma once

#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace remat {

/// A Bloom filter with one bit per storage, never cleared, because a false positive costs only
/// time. A lookup is one load; usable from any thread.
class StorageBits {
 public:
  void add(const c10::StorageImpl* storage) noexcept {
    const auto [word, bit] = place_of(storage);
    if (!has(word, bit)) words_[word].fetch_or(bit, std::memory_order_relaxed);
  }

  bool may_have(const c10::StorageImpl* storage) const noexcept {
    const auto [word, bit] = place_of(storage);
    return has(word, bit);
  }

 private:
  /// The index of the word that holds the storage's bit, and the bit.
  static std::pair<size_t, uint64_t> place_of(const c10::StorageImpl* storage) {
    const uint64_t mixed = reinterpret_cast<uintptr_t>(storage) * 0x9E3779B97F4A7C15U;
    return {mixed >> 54, uint64_t{1} << (mixed >> 48 & 63)};
  }

  bool has(size_t word, uint64_t bit) const {
    return (words_[word].load(std::memory_order_relaxed) & bit) != 0;
  }

  std::array<std::atomic<uint64_t>, 1024> words_{};
};

}  // namespace remat
