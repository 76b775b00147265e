// SPDX-License-Identifier: BSD-3-Clause

// The fields of each event in the file's order, defined once for writer and reader.
#pragma once

#include <cstdint>

#include <remat/recording/events.h>

namespace remat::detail {

/// First byte of each record in a block. The numbers are part of the format: never reuse one.
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
  kThread = 13,
  kPlan = 14,
};

/// The fields that a file stores for an event, after its kind. visit(event, fields) passes each
/// field to `fields`, which has time(TimeNs&), number(unsigned&), signed_number(int64_t&),
/// flag(bool&), choice(enumeration&, last), sizes(vector&), and all(vector&) for vectors of these
/// or of types with ItemFields.
template <class Event>
struct FieldsOf;

/// As FieldsOf, for items of lists in events.
template <class Item>
struct ItemFields;

template <>
struct ItemFields<RecordedTensor> {
  template <class Item, class Fields>
  static void visit(Item& tensor, Fields& fields) {
    fields.number(tensor.layout);
    if (tensor.layout == 0) return;
    fields.number(tensor.address);
    fields.signed_number(tensor.offset);
  }
};

template <>
struct ItemFields<RecordedValue> {
  template <class Item, class Fields>
  static void visit(Item& value, Fields& fields) {
    fields.choice(value.kind, ValueKind::kOther);
    fields.number(value.bits);
  }
};

template <>
struct ItemFields<TapePlace> {
  template <class Item, class Fields>
  static void visit(Item& place, Fields& fields) {
    fields.number(place.region);
    fields.number(place.record);
  }
};

template <>
struct FieldsOf<OpEvent> {
  static constexpr EventKind kKind = EventKind::kOp;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.begin_ns);
    fields.time(event.end_ns);
    fields.number(event.number);
    fields.number(event.name);
    fields.choice(event.phase, OpPhase::kBackward);
    fields.number(event.depth);
    fields.number(event.region);
    if (event.region != 0) {
      fields.number(event.first_slot);
      fields.number(event.end_slot);
      fields.number(event.kept);
      fields.number(event.record);
      fields.flag(event.is_seen);
      fields.number(event.call);
      fields.all(event.outer_records);
    }
    fields.number(event.sequence);
    fields.number(event.line);
    fields.flag(event.threw);
    fields.all(event.arguments);
    fields.all(event.values);
    fields.all(event.results);
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
    fields.number(event.op);
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
    ItemFields<RecordedTensor>::visit(event.tensor, fields);
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
    fields.number(event.forward_thread);
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
    fields.number(event.parent);
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
    fields.flag(event.from_function);
    fields.flag(event.threw);
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
struct FieldsOf<ThreadEvent> {
  static constexpr EventKind kKind = EventKind::kThread;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.torch_thread);
    fields.number(event.name);
  }
};

template <>
struct FieldsOf<PlanEvent> {
  static constexpr EventKind kKind = EventKind::kPlan;
  template <class Event, class Fields>
  static void visit(Event& event, Fields& fields) {
    fields.time(event.time_ns);
    fields.number(event.label);
    fields.signed_number(event.budget_bytes);
    fields.signed_number(event.predicted_peak_bytes);
    fields.signed_number(event.plain_peak_bytes);
    fields.number(event.plan);
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
    fields.flag(layout.requires_grad);
  }
};

}  // namespace remat::detail
