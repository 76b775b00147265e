// SPDX-License-Identifier: BSD-3-Clause

// A recorder that writes everything a program does to a file.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <remat/engine/export.h>

namespace remat {

/// A plan's numbers for a step, in bytes above what is alive when the step begins.
struct PlannedBytes {
  int64_t budget = 0;
  int64_t predicted_peak = 0;
  int64_t plain_peak = 0;  ///< Peak of a step that keeps everything

  auto operator<=>(const PlannedBytes&) const = default;
};

struct RecorderOptions {
  /// Also records the source line that calls each op: a line of Python if Python code is running,
  /// otherwise a line of C++ from the program's debug information (-g), whose first read takes half
  /// a second. Costs a few hundred nanoseconds per op in Python, a few microseconds in C++.
  bool source_lines = false;
  /// File for differences; "": none. Each of the first three replays that throw is compared at once
  /// with its forward in the recording, and the first op that differs is written to the file as
  /// `remat-trace diff` shows it.
  std::string differences_path{};
};

/// While alive, records each op on any thread, in the forward, in replays and in backward, inside
/// and outside of regions; what autograd saves in regions; nodes of backward; and memory allocated
/// and freed on the constructing thread and in backward passes started there. Events are buffered
/// in about 100 KiB per thread; no others are lost if the process dies. Read the file with
/// remat-trace or Recording::load(). One recorder at a time in a process. Construct and destroy it
/// on one thread, while no region runs.
///
/// REMAT_RECORD=FOLDER in the environment makes a Recorder when the process begins to use remat.
/// The Recorder lives until the process ends; docs/how-to/tools.md has the variables.
class REMAT_API Recorder {
 public:
  /// Overwrites the file. @throws c10::ValueError if it cannot be opened; c10::Error if there is
  /// another Recorder, or if a torch profiler is running.
  explicit Recorder(const std::string& path, const RecorderOptions& options = {});
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// Records the current moment under a name, such as the end of a step.
  void mark(std::string_view name);

  /// If a Recorder is recording, records that a region is about to run by a plan, once per thread
  /// for each label and plan. `json` returns the plan as JSON, and is called only if the plan is
  /// recorded.
  static void tell_plan(std::string_view label, const PlannedBytes& planned,
                        const std::function<std::string()>& json);

  /// Calls stop() and writes the recording as an HTML page; see write_report_file(). @throws
  /// c10::ValueError if the page cannot be written.
  void report(const std::string& page);

  const std::string& path() const;

  /// Writes the remaining events and stops recording. The end of the process does so, too, if
  /// nobody called stop(). @throws c10::Error on each call if the file could not be written
  /// completely (a full disk).
  void stop();

 private:
  class Session;
  std::shared_ptr<Session> session_;
};

}  // namespace remat
