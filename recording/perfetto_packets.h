// SPDX-License-Identifier: BSD-3-Clause

// The packets that a Perfetto trace is made of, written one by one.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/recording/events.h>

#include "protobuf_writer.h"

namespace remat::detail {

/// Numbers of fields, by message, as in protos/perfetto/trace of Perfetto's sources.
namespace perfetto {
enum TracePacket : uint32_t {
  kTimestamp = 8,
  kSequenceId = 10,
  kTrackEvent = 11,
  kInternedData = 12,
  kSequenceFlags = 13,
  kTrackDescriptor = 60,
};
enum TrackDescriptor : uint32_t {
  kUuid = 1,
  kTrackName = 2,
  kProcess = 3,
  kThread = 4,
  kParentUuid = 5,
  kCounter = 8,
};
enum InternedData : uint32_t {
  kCategories = 1,
  kEventNames = 2,
  kAnnotationNames = 3,
  kAnnotationTexts = 29,
};
}  // namespace perfetto

enum class TrackEventType : uint8_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4 };

/// What is told of a slice: its phase, its region.
using Annotation = std::pair<const char*, std::string>;

struct TrackEvent {
  TimeNs time_ns = 0;
  uint64_t track = 0;
  TrackEventType type = TrackEventType::kSliceBegin;
  std::string name = {};           ///< "": none
  std::string_view category = {};  ///< "": none
  std::vector<Annotation> annotations = {};
  std::vector<uint64_t> flows = {};        ///< That leave it,
  std::vector<uint64_t> ended_flows = {};  ///< and that end in it.
  int64_t value = 0;                       ///< Of a counter
};

/// Names and texts are written once and numbered; what else is written is not kept.
class PerfettoPackets {
 public:
  explicit PerfettoPackets(std::ostream& out) : out_(out) {}

  void process(uint64_t track, uint64_t pid, std::string_view name);
  /// `number`: from 1, in place of the system's number of the thread, which is not known.
  void thread(uint64_t track, uint64_t pid, uint64_t number, std::string_view name);
  void track(uint64_t track, uint64_t parent, std::string_view name);
  /// Of bytes.
  void counter(uint64_t track, uint64_t parent, std::string_view name);
  void event(const TrackEvent& event);

 private:
  uint64_t intern(perfetto::InternedData field, std::string_view text);
  ProtobufWriter message_of(const TrackEvent& event);
  void add_annotation(const Annotation& annotation, ProtobufWriter& message);
  void write(perfetto::TracePacket field, const ProtobufWriter& message, ProtobufWriter packet);

  std::ostream& out_;
  std::map<uint32_t, std::map<std::string, uint64_t, std::less<>>> interned_;  // by field
  ProtobufWriter new_interned_;  // of the packet that is written next
  bool is_first_ = true;
};

}  // namespace remat::detail
