// SPDX-License-Identifier: BSD-3-Clause

// Hashes that distinguish steps.
#pragma once

#include <cstdint>

#include <remat/memory_plan/step_profile.h>
#include <remat/planner/digest.h>

namespace remat::detail {

/// Hash of a record's op, of the values it reads, makes and writes, and of their sizes.
inline uint64_t record_digest(const StepProfile& profile, const StepRecord& record) {
  Digest digest;
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
