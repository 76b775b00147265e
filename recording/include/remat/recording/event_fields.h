// SPDX-License-Identifier: BSD-3-Clause

// The fields of each event in the file's order, defined once for writer and reader.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include <remat/recording/events.h>

namespace remat::detail {

/// The types of records, besides strings. The first byte of a record in a file is 2 plus the
/// position of its type here; for a string it is kStringKind. These numbers are part of the format,
/// so only append types.
using RecordTypes =
    std::tuple<RecordedLayout, OpEvent, MemoryEvent, SaveEvent, LoadEvent, NodeEvent, RegionEvent,
               ReplayEvent, CallEvent, MarkEvent, ProcessEvent, ThreadEvent, PlanEvent>;
inline constexpr uint8_t kStringKind = 1;

template <class Record, size_t kPosition = 0>
constexpr uint8_t kind_of() {
  if constexpr (std::is_same_v<std::tuple_element_t<kPosition, RecordTypes>, Record>) {
    return kPosition + 2;
  } else {
    return kind_of<Record, kPosition + 1>();
  }
}

template <class Type, class Event>
concept Is = std::same_as<std::remove_const_t<Type>, Event>;

// visit_fields(event, fields) calls a member of `fields` for each field that a file stores after
// the event's kind. The members are time(TimeNs&), number(unsigned&), signed_number(int64_t&),
// flag(bool&), string(id&), layout(LayoutId&), choice(enumeration&, last), sizes(vector&),
// all(vector&) for vectors of types with fields, and expect(is_valid, fault) for conditions that a
// reader checks.

void visit_fields(Is<RecordedTensor> auto& tensor, auto& fields) {
  fields.layout(tensor.layout);
  if (tensor.layout == 0) return;
  fields.number(tensor.address);
  fields.signed_number(tensor.offset);
}

void visit_fields(Is<RecordedValue> auto& value, auto& fields) {
  fields.choice(value.kind, ValueKind::kOther);
  if (value.kind == ValueKind::kText) return fields.string(value.bits);
  fields.number(value.bits);
}

void visit_fields(Is<TapePlace> auto& place, auto& fields) {
  fields.number(place.region);
  fields.number(place.record);
}

void visit_fields(Is<OpEvent> auto& event, auto& fields) {
  fields.time(event.begin_ns);
  fields.time(event.end_ns);
  fields.number(event.number);
  fields.string(event.name);
  fields.choice(event.phase, OpPhase::kBackward);
  fields.number(event.depth);
  fields.number(event.region);
  if (event.region != 0) {
    fields.number(event.first_slot);
    fields.number(event.end_slot);
    fields.expect(event.first_slot <= event.end_slot, "slots that end before they begin");
    fields.number(event.kept);
    fields.number(event.record);
    fields.flag(event.is_seen);
    fields.string(event.call);
    fields.string(event.keys);
    fields.all(event.outer_records);
  }
  fields.number(event.sequence);
  fields.string(event.line);
  fields.flag(event.threw);
  fields.all(event.arguments);
  fields.all(event.values);
  fields.all(event.results);
}

void visit_fields(Is<MemoryEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.address);
  fields.signed_number(event.bytes);
  fields.expect(event.bytes <= int64_t{1} << 44U, "more memory than a machine has");
  fields.string(event.device);
  fields.number(event.op);
}

void visit_fields(Is<SaveEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.region);
  fields.number(event.slot);
  visit_fields(event.tensor, fields);
  fields.flag(event.is_replay);
  fields.flag(event.is_kept);
}

void visit_fields(Is<LoadEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.region);
  fields.number(event.slot);
}

void visit_fields(Is<NodeEvent> auto& event, auto& fields) {
  fields.time(event.begin_ns);
  fields.time(event.end_ns);
  fields.string(event.name);
  fields.number(event.sequence);
  fields.number(event.forward_thread);
}

void visit_fields(Is<RegionEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.region);
  fields.number(event.whole);
  fields.number(event.parent);
  fields.number(event.depth);
  fields.string(event.label);
}

void visit_fields(Is<ReplayEvent> auto& event, auto& fields) {
  fields.time(event.begin_ns);
  fields.time(event.end_ns);
  fields.number(event.region);
  fields.flag(event.from_function);
  fields.flag(event.threw);
}

void visit_fields(Is<CallEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.region);
  fields.string(event.name);
  fields.string(event.policy);
  fields.choice(event.step, CallStep::kLeftOut);
  fields.flag(event.is_replay);
}

void visit_fields(Is<MarkEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.string(event.name);
}

void visit_fields(Is<ThreadEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.number(event.torch_thread);
  fields.string(event.name);
}

void visit_fields(Is<PlanEvent> auto& event, auto& fields) {
  fields.time(event.time_ns);
  fields.string(event.label);
  fields.signed_number(event.budget_bytes);
  fields.signed_number(event.predicted_peak_bytes);
  fields.signed_number(event.plain_peak_bytes);
  fields.string(event.plan);
}

void visit_fields(Is<ProcessEvent> auto& event, auto& fields) {
  fields.signed_number(event.begin_unix_ns);
  fields.number(event.pid);
  fields.string(event.program);
  fields.string(event.torch_version);
}

void visit_fields(Is<RecordedLayout> auto& layout, auto& fields) {
  fields.string(layout.dtype);
  fields.string(layout.device);
  fields.sizes(layout.sizes);
  fields.sizes(layout.strides);
  fields.expect(layout.strides.empty() || layout.strides.size() == layout.sizes.size(),
                "strides that do not go with their sizes");
  fields.flag(layout.requires_grad);
}

}  // namespace remat::detail
