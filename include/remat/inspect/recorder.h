// SPDX-License-Identifier: BSD-3-Clause

// All that a program does, into a file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <remat/tape/export.h>

namespace remat {

/// While alive, writes down each op on any thread, in the forward, in replays and in backward,
/// inside of regions and outside; what autograd saves in regions; nodes of backward; memory that is
/// allocated and freed on the thread that makes it, in backwards which that begins, and on other
/// threads once they have run an op. Buffers take at most some 100 KiB a thread; what a process has
/// not written when it dies is lost, no more. remat-trace reads the file, and Recording::load().
/// One at a time in a process. Make and destroy it on one thread, while no region runs.
class REMAT_API Recorder {
 public:
  /// Writes the file anew. @throws ValueError if it cannot be opened; RuntimeError if there is
  /// another Recorder, or under a running torch profiler.
  explicit Recorder(const std::string& path);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// Names this moment, such as the end of a step.
  void mark(std::string_view name);

  /// Writes what is left, and no more from then on. The end of the process does it, too. @throws
  /// RuntimeError if the file could not be written to its end (a full disk), each time that it is
  /// called.
  void stop();

 private:
  class Session;
  std::shared_ptr<Session> session_;
};

namespace detail {

/// Begins a recording for the whole process if the environment variable REMAT_RECORD names a
/// folder: of REMAT_RECORD/remat-PID.rec. Ends when the process does. Once; warns if it cannot.
REMAT_API bool record_from_environment();

inline const bool kRecorded = record_from_environment();

}  // namespace detail
}  // namespace remat
