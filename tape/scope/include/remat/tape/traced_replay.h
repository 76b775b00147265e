// SPDX-License-Identifier: BSD-3-Clause

// Telling who listens that a replay runs.
#pragma once

#include <atomic>
#include <cstdint>

#include <remat/tape/trace_sink.h>

namespace remat {

/// Tells the trace_sink of the begin and the end of a replay, on the thread that lives it.
class TracedReplay {
 public:
  enum class From : uint8_t { kTape, kFunction };

  /// `whole`: of a tape that is cut, the region that the part is of; else the same.
  TracedReplay(const Region& region, const Region& whole, From from)
      : region_(region), whole_(whole), from_(from) {
    tell(/*begins=*/true);
  }
  TracedReplay(const TracedReplay&) = delete;
  TracedReplay& operator=(const TracedReplay&) = delete;
  ~TracedReplay() { tell(/*begins=*/false); }

 private:
  void tell(bool begins) const {
    TraceSink* const sink = trace_sink.load(std::memory_order_acquire);
    if (!sink) return;
    if (from_ == From::kTape) {
      sink->tape_replay(region_, whole_, begins);
    } else {
      sink->function_replay(region_, begins);
    }
  }

  const Region& region_;
  const Region& whole_;
  const From from_;
};

}  // namespace remat
