// SPDX-License-Identifier: BSD-3-Clause

// All that a program does, into a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>

#include <remat/tape/export.h>

namespace remat {

/// What a plan says about a step, in bytes above what is alive when it begins.
struct PlannedBytes {
  int64_t budget = 0;
  int64_t predicted_peak = 0;
  int64_t plain_peak = 0;  ///< Of a step of which everything is kept

  bool operator<(const PlannedBytes& other) const {
    return std::tie(budget, predicted_peak, plain_peak) <
           std::tie(other.budget, other.predicted_peak, other.plain_peak);
  }
};

struct RecorderOptions {
  /// Also the line of the program that calls each op: of Python, where that runs; else of C++, by
  /// the debug information of the program (-g), which is read for half a second the first time.
  /// Takes some hundred nanoseconds an op in Python, some microseconds in C++.
  bool source_lines = false;
  /// Where each replay that throws is compared with its forward, right then, by all that has been
  /// recorded: the first op that differs, as `remat-trace diff` tells it. "": nowhere.
  std::string differences_path{};
};

/// While alive, writes down each op on any thread, in the forward, in replays and in backward,
/// inside of regions and outside; what autograd saves in regions; nodes of backward; memory that is
/// allocated and freed on the thread that makes it, and in backwards which that begins. Buffers
/// take at most some 100 KiB a thread; what a process has not written when it dies is lost, no
/// more. remat-trace reads the file, and Recording::load(). One at a time in a process. Make and
/// destroy it on one thread, while no region runs.
class REMAT_API Recorder {
 public:
  /// Writes the file anew. @throws c10::ValueError if it cannot be opened. @throws c10::Error if
  /// there is another Recorder, or under a running torch profiler.
  explicit Recorder(const std::string& path, const RecorderOptions& options = {});
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// Names this moment, such as the end of a step.
  void mark(std::string_view name);

  /// Tells the open recording, if there is one, that a region is about to run by a plan: the first
  /// time that this thread does in the recording. `json` is asked for the plan then.
  static void tell_plan(std::string_view label, const PlannedBytes& planned,
                        const std::function<std::string()>& json);

  /// stop(), and writes the recording as a page: write_report_file(). @throws c10::ValueError if
  /// the page cannot be written.
  void report(const std::string& page);

  const std::string& path() const;

  /// Writes what is left, and no more from then on. The end of the process does it, too. @throws
  /// c10::Error if the file could not be written to its end (a full disk), each time that it is
  /// called.
  void stop();

 private:
  class Session;
  std::shared_ptr<Session> session_;
};

namespace detail {

/// Begins a recording for the whole process if the environment variable REMAT_RECORD names a
/// folder: of REMAT_RECORD/remat-PID.rec, with source lines if REMAT_RECORD_LINES is 1. Without it
/// REMAT_DEBUG=1 begins one in the present folder; with it there are source lines, and differences
/// in remat-PID.diff beside the recording. Ends when
/// the process does. Once; warns if it cannot.
REMAT_API bool record_from_environment();

inline const bool kRecorded = record_from_environment();

}  // namespace detail
}  // namespace remat
