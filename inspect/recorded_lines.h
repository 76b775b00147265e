// SPDX-License-Identifier: BSD-3-Clause

// Ids of source lines in a recording.
#pragma once

#include <map>

#include <remat/inspect/source_places.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Looks up lines for one thread.
class RecordedLines {
 public:
  /// All ids are 0 unless `asks`.
  RecordedLines(RecordingWriter& writer, bool asks) : writer_(writer), asks_(asks) {}

  /// The line that the program is at. `by_engine`: true if a backward pass seems to have called
  /// what runs now; then only a line of Python that a node called counts, and 0 means that there is
  /// none.
  StringId here(bool by_engine);

  /// Marks the begin and the end of a backward pass.
  void begin_backward();
  void end_backward() { backward_ = {}; }

 private:
  static SourcePlace in_python();
  StringId number_of(const SourcePlace& place, SourcePlaces& places);

  RecordingWriter& writer_;
  const bool asks_;
  SourcePlace backward_;  // the Python line that started the current backward pass
  std::map<SourcePlace, StringId> known_;
};

}  // namespace remat
