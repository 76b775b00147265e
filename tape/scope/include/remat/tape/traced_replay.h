// SPDX-License-Identifier: BSD-3-Clause

// Reporting replays to the trace sink.
#pragma once

#include <atomic>
#include <cstdint>

#include <remat/tape/trace_sink.h>

namespace remat {

/// Reports the begin and end of a replay to trace_sink, on the replay's thread.
class TracedReplay {
 public:
  enum class From : uint8_t { kTape, kFunction };

  /// `whole`: the whole region if `region` is part of one whose tape is cut; else `region`.
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
