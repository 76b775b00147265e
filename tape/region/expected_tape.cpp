// SPDX-License-Identifier: BSD-3-Clause

// Hashes of what records read and make.
#include <remat/tape/expected_tape.h>

#include <functional>

#include "hash_mix.h"

namespace remat {

uint64_t ExpectedTape::hash_reads(std::string_view op, c10::ArrayRef<uint32_t> values) {
  return hash_reads(std::hash<std::string_view>{}(op), values);
}

uint64_t ExpectedTape::hash_reads(size_t name_hash, c10::ArrayRef<uint32_t> values) {
  uint64_t hash = name_hash;
  for (const uint32_t value : values) hash = hash_mix(hash, value);
  return hash;
}

uint64_t ExpectedTape::hash_makes(c10::ArrayRef<uint32_t> results,
                                  c10::ArrayRef<std::pair<uint32_t, uint32_t>> writes) {
  uint64_t hash = hash_mix(1, results.size());
  for (const uint32_t value : results) hash = hash_mix(hash, value);
  for (const auto& [before, after] : writes) hash = hash_mix(hash_mix(hash, before), after);
  return hash;
}

}  // namespace remat
