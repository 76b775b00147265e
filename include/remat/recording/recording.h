// SPDX-License-Identifier: BSD-3-Clause

// A recording that has been read: all its events, by kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/events.h>

namespace remat {

/// An event, and the thread that it happened on: numbers from 0, in the order in which the
/// recording met them.
template <class Event>
struct OnThread : Event {
  uint32_t thread = 0;
};

/// A plain value. Events of a kind are sorted by time (of those with two, by the begin), and those
/// of the same time on a thread as they happened.
struct REMAT_API Recording {
  ProcessEvent process;
  std::vector<std::string> strings;     ///< By StringId
  std::vector<RecordedLayout> layouts;  ///< By LayoutId
  std::vector<OnThread<OpEvent>> ops;
  std::vector<OnThread<MemoryEvent>> memory;
  std::vector<OnThread<SaveEvent>> saves;
  std::vector<OnThread<LoadEvent>> loads;
  std::vector<OnThread<NodeEvent>> nodes;
  std::vector<OnThread<RegionEvent>> regions;
  std::vector<OnThread<ReplayEvent>> replays;
  std::vector<OnThread<CallEvent>> calls;
  std::vector<OnThread<MarkEvent>> marks;
  std::vector<OnThread<ThreadEvent>> threads;
  std::vector<OnThread<PlanEvent>> plans;
  /// "": all of the file has been read. Else what stopped the reading, and where: "at byte 1024:
  /// expected a block, got an end". The events before that are there.
  std::string damage;

  const std::string& text(StringId id) const { return strings[id]; }

  /// "float32 [2, 3]"; "none"
  std::string words_of(const RecordedTensor& tensor) const;

  /// Reads what a recorder has written, also one that is still at work or has died.
  /// @throws std::invalid_argument `[recording] path: expected ..., got .... What to do.` if the
  /// file cannot be read, is no recording, or is of another version.
  static Recording load(const std::string& path);

  /// The same of bytes; `source` stands for the path in errors.
  static Recording from_bytes(std::string_view bytes, const std::string& source = "recording");
};

}  // namespace remat
