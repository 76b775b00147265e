// SPDX-License-Identifier: BSD-3-Clause

// The time that replays from tapes take.
#pragma once

#include <memory>

#include <remat/engine/export.h>

namespace remat {

/// Counts, from construction to destruction, the CPU time of replays from tapes: for each replay
/// that of the thread on which it runs, with the replays that it begins. Slows each op by a few
/// hundred nanoseconds. For measurements; any thread.
///
///     remat::ReplayClock clock;
///     loss.backward();
///     double share = clock.cpu_seconds() / seconds_of_the_step;
class REMAT_API ReplayClock {
 public:
  ReplayClock();
  ReplayClock(const ReplayClock&) = delete;
  ReplayClock& operator=(const ReplayClock&) = delete;
  ~ReplayClock();

  /// CPU seconds of replays that have ended.
  double cpu_seconds() const;

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace remat
