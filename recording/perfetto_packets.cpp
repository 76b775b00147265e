// SPDX-License-Identifier: BSD-3-Clause

#include "perfetto_packets.h"

#include <algorithm>

#include "utf8_text.h"

namespace remat::detail {
namespace {

using perfetto::TracePacket;

// Fields of messages that only this file writes.
constexpr uint32_t kTracePacketField = 1;                      // Trace
constexpr uint32_t kProcessPid = 1, kProcessName = 6;          // ProcessDescriptor
constexpr uint32_t kThreadPid = 1, kTid = 2, kThreadName = 5;  // ThreadDescriptor
constexpr uint32_t kUnit = 3;                                  // CounterDescriptor
constexpr uint32_t kIid = 1, kInternedText = 2;                // EventName and its like
constexpr uint32_t kAnnotationName = 1, kAnnotationText = 17;  // DebugAnnotation
constexpr uint32_t kEventCategories = 3, kEventAnnotations = 4, kEventType = 9, kEventName = 10,
                   kEventTrack = 11, kCounterValue = 30, kFlows = 47,
                   kEndedFlows = 48;  // TrackEvent

constexpr uint64_t kUnitBytes = 3;
constexpr uint64_t kOneSequence = 1;
constexpr uint64_t kStateCleared = 1;
constexpr uint64_t kNeedsState = 2;

}  // namespace

void PerfettoPackets::process(uint64_t track, uint64_t pid, std::string_view name) {
  ProtobufWriter process;
  process.number(kProcessPid, pid);
  process.text(kProcessName, utf8_of(name));
  ProtobufWriter descriptor;
  descriptor.number(perfetto::kUuid, track);
  descriptor.message(perfetto::kProcess, process);
  write(perfetto::kTrackDescriptor, descriptor, {});
}

void PerfettoPackets::thread(uint64_t track, uint64_t pid, uint64_t number, std::string_view name) {
  ProtobufWriter thread;
  thread.number(kThreadPid, pid);
  thread.number(kTid, number);
  thread.text(kThreadName, utf8_of(name));
  ProtobufWriter descriptor;
  descriptor.number(perfetto::kUuid, track);
  descriptor.message(perfetto::kThread, thread);
  write(perfetto::kTrackDescriptor, descriptor, {});
}

void PerfettoPackets::track(uint64_t track, uint64_t parent, std::string_view name) {
  ProtobufWriter descriptor;
  descriptor.number(perfetto::kUuid, track);
  descriptor.text(perfetto::kTrackName, utf8_of(name));
  descriptor.number(perfetto::kParentUuid, parent);
  write(perfetto::kTrackDescriptor, descriptor, {});
}

void PerfettoPackets::counter(uint64_t track, uint64_t parent, std::string_view name) {
  ProtobufWriter counter;
  counter.number(kUnit, kUnitBytes);
  ProtobufWriter descriptor;
  descriptor.number(perfetto::kUuid, track);
  descriptor.text(perfetto::kTrackName, utf8_of(name));
  descriptor.number(perfetto::kParentUuid, parent);
  descriptor.message(perfetto::kCounter, counter);
  write(perfetto::kTrackDescriptor, descriptor, {});
}

void PerfettoPackets::event(const TrackEvent& event) {
  ProtobufWriter packet;
  packet.number(perfetto::kTimestamp, static_cast<uint64_t>(std::max<TimeNs>(event.time_ns, 0)));
  write(perfetto::kTrackEvent, message_of(event), std::move(packet));
}

ProtobufWriter PerfettoPackets::message_of(const TrackEvent& event) {
  ProtobufWriter message;
  message.number(kEventType, static_cast<uint64_t>(event.type));
  message.number(kEventTrack, event.track);
  if (!event.name.empty()) message.number(kEventName, intern(perfetto::kEventNames, event.name));
  if (!event.category.empty())
    message.number(kEventCategories, intern(perfetto::kCategories, event.category));
  for (const Annotation& annotation : event.annotations) add_annotation(annotation, message);
  for (const uint64_t flow : event.flows) message.fixed64(kFlows, flow);
  for (const uint64_t flow : event.ended_flows) message.fixed64(kEndedFlows, flow);
  if (event.type == TrackEventType::kCounter) message.signed_number(kCounterValue, event.value);
  return message;
}

void PerfettoPackets::add_annotation(const Annotation& annotation, ProtobufWriter& message) {
  ProtobufWriter added;
  added.number(kAnnotationName, intern(perfetto::kAnnotationNames, annotation.first));
  added.number(kAnnotationText, intern(perfetto::kAnnotationTexts, annotation.second));
  message.message(kEventAnnotations, added);
}

uint64_t PerfettoPackets::intern(perfetto::InternedData field, std::string_view text) {
  auto& known = interned_[field];
  if (const auto at = known.find(text); at != known.end()) return at->second;
  const uint64_t iid = known.size() + 1;  // 0 stands for none
  known.emplace(text, iid);
  ProtobufWriter entry;
  entry.number(kIid, iid);
  entry.text(kInternedText, utf8_of(text));
  new_interned_.message(field, entry);
  return iid;
}

void PerfettoPackets::write(TracePacket field, const ProtobufWriter& message,
                            ProtobufWriter packet) {
  packet.number(perfetto::kSequenceId, kOneSequence);
  packet.number(perfetto::kSequenceFlags, is_first_ ? kStateCleared | kNeedsState : kNeedsState);
  is_first_ = false;
  if (!new_interned_.empty()) packet.message(perfetto::kInternedData, new_interned_);
  new_interned_.clear();
  packet.message(field, message);
  ProtobufWriter trace;
  trace.message(kTracePacketField, packet);
  out_ << trace.bytes();
}

}  // namespace remat::detail
