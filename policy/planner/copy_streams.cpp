// SPDX-License-Identifier: BSD-3-Clause

// Note [OFFLOAD] in copy_streams.h.
#include "copy_streams.h"

#include <algorithm>
#include <cmath>

namespace remat::detail {

Ticks CopyStreams::duration(int64_t bytes) const {
  return static_cast<Ticks>(std::ceil(static_cast<double>(bytes) * ticks_per_byte_));
}

Ticks CopyStreams::send(size_t region, const std::vector<int>& tensors,
                        const std::vector<int64_t>& bytes, Ticks now) {
  if (!out_.empty()) now = std::max(now, out_.back().end);
  settle(now, now);
  Ticks begin = now;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Ticks end = begin + duration(bytes[i]);
    out_.push_back({region, tensors[i], bytes[i], begin, end});
    begin = end;
  }
  return now;
}

void CopyStreams::fetch(size_t region, Ticks now) {
  settle(now, now);
  out_.erase(std::remove_if(out_.begin(), out_.end(),
                            [&](const Copy& copy) { return copy.region == region; }),
             out_.end());
  for (const Copy& copy : away_) {
    if (copy.region != region) continue;
    const Ticks begin = std::max(in_free_, now);
    in_free_ = begin + duration(copy.bytes);
    in_.push_back({region, copy.tensor, copy.bytes, begin, in_free_});
  }
  away_.erase(std::remove_if(away_.begin(), away_.end(),
                             [&](const Copy& copy) { return copy.region == region; }),
              away_.end());
}

Ticks CopyStreams::ready(size_t region, Ticks now) const {
  for (const Copy& copy : in_) {
    if (copy.region == region) now = std::max(now, copy.end);
  }
  return now;
}

void CopyStreams::settle(Ticks begin, Ticks end) {
  while (!out_.empty() && out_.front().end <= begin) {
    mark_(out_.front().region, out_.front().tensor, false);
    away_.push_back(out_.front());
    out_.erase(out_.begin());
  }
  for (Copy& copy : in_) {
    if (copy.marked || copy.begin >= std::max(end, begin + 1)) continue;
    copy.marked = true;
    mark_(copy.region, copy.tensor, true);
  }
  in_.erase(std::remove_if(in_.begin(), in_.end(),
                           [&](const Copy& copy) { return copy.marked && copy.end <= begin; }),
            in_.end());
}

}  // namespace remat::detail
