// SPDX-License-Identifier: BSD-3-Clause

// Hashing what a record reads and makes, and the text of a difference.
#include <remat/engine/expected_tape.h>

#include <c10/util/StringUtil.h>

#include <functional>

#include <remat/engine/hash_mix.h>

namespace remat {
namespace {

std::string op_or_end(const std::string& op) {
  return op.empty() ? "the end of the function" : op;
}

}  // namespace

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

std::string TapeDifference::str() const {
  const std::string place = c10::str("record ", record, ", ", op_or_end(got), ", ");
  if (in_slot)
    return c10::str("expected the tensors that autograd saved then at ", place, "got others");
  if (most_bytes > 0) {
    return c10::str("expected ", most_bytes, " bytes of new memory or less up to ", place, "got ",
                    got_bytes);
  }
  return c10::str("expected ", op_or_end(expected), " as record ", record, ", got ", op_or_end(got),
                  expected == got ? " of other values" : "");
}

}  // namespace remat
