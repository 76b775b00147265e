// SPDX-License-Identifier: BSD-3-Clause

// The ops, nodes or replays that run on a thread at a given time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// Finds the events that run at a time. For each thread, the times of queries must not decrease.
template <class Event>
class RunningSpans {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// `events` must be sorted by begin and outlive this object.
  explicit RunningSpans(const std::vector<OnThread<Event>>& events) : events_(events) {
    for (size_t i = 0; i < events.size(); ++i) threads_[events[i].thread].order.push_back(i);
  }

  /// Indices of the running events, the innermost last.
  const std::vector<size_t>& at(uint32_t thread, TimeNs time_ns) {
    Thread& here = threads_[thread];
    while (here.next < here.order.size() && events_[here.order[here.next]].begin_ns <= time_ns)
      here.running.push_back(here.order[here.next++]);
    std::erase_if(here.running, [&](size_t i) { return events_[i].end_ns < time_ns; });
    return here.running;
  }

  /// The event that began last, whether it has ended or not.
  size_t last_at(uint32_t thread, TimeNs time_ns) {
    at(thread, time_ns);
    const Thread& here = threads_[thread];
    return here.next == 0 ? kNone : here.order[here.next - 1];
  }

  size_t innermost_at(uint32_t thread, TimeNs time_ns) {
    const std::vector<size_t>& running = at(thread, time_ns);
    return running.empty() ? kNone : running.back();
  }

 private:
  struct Thread {
    std::vector<size_t> order;
    size_t next = 0;
    std::vector<size_t> running;
  };

  const std::vector<OnThread<Event>>& events_;
  std::unordered_map<uint32_t, Thread> threads_;
};

}  // namespace remat::detail
