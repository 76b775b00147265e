// SPDX-License-Identifier: BSD-3-Clause

// The numbers of source lines in a recording.
#pragma once

#include <unordered_map>

#include <remat/inspect/source_places.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Of one thread.
class RecordedLines {
 public:
  /// If not `asks`, there are none.
  RecordedLines(RecordingWriter& writer, bool asks) : writer_(writer), asks_(asks) {}

  /// The line that the program is at. `by_engine`: what runs now has been called by a backward, as
  /// far as anybody knows: its line is of what a node of the program calls; 0: of no such.
  StringId here(bool by_engine);

  /// A backward begins, or one that has begun is over.
  void begin_backward();
  void end_backward() { backward_ = {}; }

 private:
  static SourcePlace in_python();
  StringId number_of(const SourcePlace& place, SourcePlaces& places);

  RecordingWriter& writer_;
  const bool asks_;
  SourcePlace backward_;  // that called the backward which runs, in Python
  std::unordered_map<SourcePlace, StringId, SourcePlaceHash> known_;
};

}  // namespace remat
