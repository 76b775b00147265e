// SPDX-License-Identifier: BSD-3-Clause

// The fields of each event in the order in which a file has them: said once, for writer and reader.
#pragma once

#include <cstdint>

#include <remat/recording/events.h>

namespace remat::detail {

/// What a record of a block begins with. Numbers are of the format: never reuse one.
enum class EventKind : uint8_t {
  kString = 1,
  kLayout = 2,
  kOp = 3,
  kMemory = 4,
  kSave = 5,
  kLoad = 6,
  kNode = 7,
  kRegion = 8,
  kReplay = 9,
  kCall = 10,
  kMark = 11,
  kProcess = 12,
};

/// What a file says of an event, after its kind. Its visit(event, fields) passes each field to
/// `fields`, which has time(TimeNs&), number(unsigned&), signed_number(int64_t&), flag(bool&),
/// choice(enumeration&, last), sizes(vector&), tensor(RecordedTensor&) and tensors(vector&).
template <class Event>
struct FieldsOf;

template <>
struct FieldsOf<OpEvent> {
  static constexpr EventKind kKind = EventKind::kOp;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.begin_ns);
    fields.time(event.end_ns);
    fields.number(event.name);
    fields.choice(event.phase, OpPhase::kBackward);
    fields.number(event.depth);
    fields.number(event.region);
    if (event.region != 0) {
      fields.number(event.first_slot);
      fields.number(event.end_slot);
      fields.number(event.kept);
      fields.number(event.record);
    }
    fields.flag(event.threw);
    fields.tensors(event.arguments);
    fields.tensors(event.results);
  }
};

template <>
struct FieldsOf<MemoryEvent> {
  static constexpr EventKind kKind = EventKind::kMemory;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.address);
    fields.signed_number(event.bytes);
    fields.number(event.device);
  }
};

template <>
struct FieldsOf<SaveEvent> {
  static constexpr EventKind kKind = EventKind::kSave;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.region);
    fields.number(event.slot);
    fields.tensor(event.tensor);
    fields.flag(event.is_replay);
    fields.flag(event.is_kept);
  }
};

template <>
struct FieldsOf<LoadEvent> {
  static constexpr EventKind kKind = EventKind::kLoad;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.region);
    fields.number(event.slot);
  }
};

template <>
struct FieldsOf<NodeEvent> {
  static constexpr EventKind kKind = EventKind::kNode;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.begin_ns);
    fields.time(event.end_ns);
    fields.number(event.name);
    fields.number(event.sequence);
  }
};

template <>
struct FieldsOf<RegionEvent> {
  static constexpr EventKind kKind = EventKind::kRegion;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.region);
    fields.number(event.whole);
    fields.number(event.depth);
    fields.number(event.label);
  }
};

template <>
struct FieldsOf<ReplayEvent> {
  static constexpr EventKind kKind = EventKind::kReplay;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.begin_ns);
    fields.time(event.end_ns);
    fields.number(event.region);
  }
};

template <>
struct FieldsOf<CallEvent> {
  static constexpr EventKind kKind = EventKind::kCall;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.region);
    fields.number(event.name);
    fields.number(event.policy);
    fields.choice(event.step, CallStep::kLeftOut);
    fields.flag(event.is_replay);
  }
};

template <>
struct FieldsOf<MarkEvent> {
  static constexpr EventKind kKind = EventKind::kMark;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.name);
  }
};

template <>
struct FieldsOf<ProcessEvent> {
  static constexpr EventKind kKind = EventKind::kProcess;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.signed_number(event.begin_unix_ns);
    fields.number(event.pid);
    fields.number(event.program);
    fields.number(event.torch_version);
  }
};

template <>
struct FieldsOf<RecordedLayout> {
  static constexpr EventKind kKind = EventKind::kLayout;
  template <class Layout, class Fields>
  static void visit(Layout& layout, Fields& fields) {
    fields.number(layout.dtype);
    fields.number(layout.device);
    fields.sizes(layout.sizes);
    fields.sizes(layout.strides);
  }
};

}  // namespace remat::detail
