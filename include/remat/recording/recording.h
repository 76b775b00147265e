// SPDX-License-Identifier: BSD-3-Clause

// A recording as read from its file: all events, by kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/events.h>

namespace remat {

/// An event and its thread. Threads are numbered from 0 in the order in which the recorder first
/// met them.
template <class Event>
struct OnThread : Event {
  uint32_t thread = 0;
};

/// The events of a recording. Events of each kind are sorted by time (by begin, if they have two
/// times), and events with equal times on one thread are in the order in which they happened.
struct REMAT_API Recording {
  ProcessEvent process;
  std::vector<std::string> strings;     ///< Indexed by StringId
  std::vector<RecordedLayout> layouts;  ///< Indexed by LayoutId
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
  /// "": the whole file was read. Otherwise what stopped the reading, and where: "at byte 1024:
  /// expected a block, got an end". The events before that byte are present.
  std::string damage;

  const std::string& text(StringId id) const { return strings[id]; }

  /// Describes a tensor: "float32 [2, 3]", or "none".
  std::string words_of(const RecordedTensor& tensor) const;

  /// Reads a recorder's file, also if the recorder is still running or its process has died.
  /// @throws std::invalid_argument `[recording] path: expected ..., got .... What to do.` if the
  /// file cannot be read, is no recording, or has another version.
  static Recording load(const std::string& path);

  /// Does what load() does, from bytes; `source` stands for the path in errors.
  static Recording from_bytes(std::string_view bytes, const std::string& source = "recording");
};

}  // namespace remat
