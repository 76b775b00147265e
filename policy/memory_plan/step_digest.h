// SPDX-License-Identifier: BSD-3-Clause

// What tells one step from another.
#pragma once

#include <cstdint>
#include <string>

#include <remat/memory_plan/step_profile.h>

namespace remat::detail {

/// FNV-1a over numbers and strings, each with its length.
class StepDigest {
 public:
  void add(int64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    for (const char c : text) byte(static_cast<uint8_t>(c));
  }
  uint64_t hash() const { return hash_; }

 private:
  void byte(uint8_t value) { hash_ = (hash_ ^ value) * 1099511628211U; }

  uint64_t hash_ = 14695981039346656037U;
};

/// Of an op, what it reads, makes and writes, and the sizes of that.
inline uint64_t record_digest(const StepProfile& profile, const StepRecord& record) {
  StepDigest digest;
  const auto add_value = [&](int32_t v) {
    digest.add(v);
    digest.add(profile.values[v].storage);
    digest.add(profile.values[v].bytes);
  };
  digest.add(record.op);
  digest.add(record.reads_data ? 1 : 0);
  digest.add(static_cast<int64_t>(record.reads.size()));
  for (const int32_t v : record.reads) add_value(v);
  digest.add(static_cast<int64_t>(record.makes.size()));
  for (const int32_t v : record.makes) add_value(v);
  for (const StepWrite& write : record.writes) {
    digest.add(write.before);
    add_value(write.after);
  }
  return digest.hash();
}

}  // namespace remat::detail
