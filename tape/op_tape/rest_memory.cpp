// SPDX-License-Identifier: BSD-3-Clause

#include "rest_memory.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <vector>

namespace remat {
namespace {

constexpr size_t kLooks = 8;  // While a segment grows by its usual size.

}  // namespace

void RestMemory::wrote(const Tape& tape, const TapeRecord& record) {
  for (const auto i : c10::irange(record.write_count)) {
    const TapeWrite& write = tape.writes(record)[i];
    for (Made& made : made_) {
      if (made.value == write.before) made.value = write.after;
    }
  }
}

size_t RestMemory::bytes_to_cross(c10::function_ref<bool(uint32_t value)> is_held) {
  next_look_ = made_bytes_ + std::max(segment_bytes_, grows_ ? made_bytes_ : 0) / kLooks;
  std::erase_if(made_,
                [&](const Made& made) { return made.storage.expired() || is_held(made.value); });
  size_t bytes = 0;
  for (const Made& made : made_) bytes += made.bytes;
  return bytes;
}

}  // namespace remat
