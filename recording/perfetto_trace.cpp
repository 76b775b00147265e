// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/perfetto_trace.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/replay_links.h>

#include "nested_lanes.h"
#include "perfetto_packets.h"
#include "region_labels.h"
#include "value_words.h"

namespace remat {
namespace {

using detail::Annotation;
using detail::TrackEvent;
using detail::TrackEventType;

enum class SpanKind : uint8_t { kReplay, kNode, kOp };
enum class SpanTrack : uint8_t { kRuns, kReplays, kBackward };
constexpr size_t kSpanTracks = 3;
constexpr std::array<const char*, kSpanTracks> kSpanTrackNames = {"ops", "replays", "backward"};

/// An op, replay or node, in the order in which a trace tells of them.
struct Span {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  uint32_t thread = 0;
  SpanTrack track = SpanTrack::kRuns;
  SpanKind kind = SpanKind::kOp;
  uint32_t depth = 0;
  size_t place = 0;  ///< In Recording::ops, replays or nodes

  auto order() const { return std::tuple(begin_ns, kind, depth, place); }
};

template <class Event>
Span span_of(const OnThread<Event>& event, SpanTrack track, SpanKind kind, size_t place) {
  return {event.begin_ns, std::max(event.begin_ns, event.end_ns), event.thread, track, kind, 0,
          place};
}

std::vector<Span> spans_of(const Recording& recording) {
  std::vector<Span> spans;
  spans.reserve(recording.ops.size() + recording.replays.size() + recording.nodes.size());
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    const auto& op = recording.ops[i];
    const bool is_replay = op.phase == OpPhase::kReplay;
    spans.push_back(
        span_of(op, is_replay ? SpanTrack::kReplays : SpanTrack::kRuns, SpanKind::kOp, i));
    spans.back().depth = op.depth;
  }
  for (size_t i = 0; i < recording.replays.size(); ++i)
    spans.push_back(span_of(recording.replays[i], SpanTrack::kReplays, SpanKind::kReplay, i));
  for (size_t i = 0; i < recording.nodes.size(); ++i)
    spans.push_back(span_of(recording.nodes[i], SpanTrack::kBackward, SpanKind::kNode, i));
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.order() < b.order(); });
  return spans;
}

/// Writes what is known as soon as it is: of the trace nothing is kept but names.
class PerfettoTrace {
 public:
  PerfettoTrace(const Recording& recording, std::ostream& out)
      : recording_(recording),
        packets_(out),
        labels_(recording),
        forwards_(forward_ops(recording)),
        makers_(ops_of_nodes(recording)) {
    for (size_t i = 0; i < forwards_.size(); ++i) {
      if (forwards_[i] != kNoOp) replays_of_[forwards_[i]].push_back(flow_of(i));
    }
    for (const auto& thread : recording.threads) thread_names_.emplace(thread.thread, thread.name);
  }

  void run() {
    process_ = next_track_++;
    packets_.process(process_, recording_.process.pid, recording_.text(recording_.process.program));
    write_marks();
    write_counters();
    for (const Span& span : spans_of(recording_)) write(span);
    for (auto& [key, track] : tracks_) end_until(std::numeric_limits<TimeNs>::max(), track);
  }

 private:
  struct Track {
    std::string name;
    uint64_t parent = 0;
    std::vector<uint64_t> lanes;  ///< Their tracks in the trace
    detail::NestedLanes open;
  };

  /// One for each op that runs again; a flow joins two slices.
  static uint64_t flow_of(size_t op) { return op + 1; }

  void write_marks() {
    if (recording_.marks.empty()) return;
    const uint64_t track = next_track_++;
    packets_.track(track, process_, "marks");
    for (const auto& mark : recording_.marks) {
      packets_.event({.time_ns = mark.time_ns,
                      .track = track,
                      .type = TrackEventType::kInstant,
                      .name = recording_.text(mark.name),
                      .category = "mark"});
    }
  }

  void write_counters() {
    if (recording_.memory.empty()) return;
    const uint64_t total = next_track_;
    next_track_ += 1 + kBlockKinds;
    packets_.counter(total, process_, "bytes alive");
    for (size_t kind = 0; kind < kBlockKinds; ++kind) {
      packets_.counter(total + 1 + kind, process_,
                       std::string("bytes alive: ") + kind_name(static_cast<BlockKind>(kind)));
    }
    AliveByKind before;
    for (const AliveByKind& alive : alive_by_kind(recording_, memory_blocks(recording_))) {
      count(alive.time_ns, total, alive.total());
      for (size_t kind = 0; kind < kBlockKinds; ++kind) {
        if (alive.bytes[kind] != before.bytes[kind])
          count(alive.time_ns, total + 1 + kind, alive.bytes[kind]);
      }
      before = alive;
    }
  }

  void count(TimeNs time_ns, uint64_t track, int64_t bytes) {
    packets_.event(
        {.time_ns = time_ns, .track = track, .type = TrackEventType::kCounter, .value = bytes});
  }

  void write(const Span& span) {
    Track& track = track_of(span);
    end_until(span.begin_ns, track);
    TrackEvent event = event_of(span);
    event.time_ns = span.begin_ns;
    event.track = lane_of(track, track.open.begin(span.end_ns));
    packets_.event(event);
  }

  void end_until(TimeNs time_ns, Track& track) {
    track.open.end_until(time_ns, [&](size_t lane, TimeNs end_ns) {
      packets_.event(
          {.time_ns = end_ns, .track = lane_of(track, lane), .type = TrackEventType::kSliceEnd});
    });
  }

  Track& track_of(const Span& span) {
    const auto [at, is_new] = tracks_.try_emplace({span.thread, span.track});
    if (is_new) {
      at->second.name = kSpanTrackNames[static_cast<size_t>(span.track)];
      at->second.parent = thread_track(span.thread);
      // What a thread runs is on the thread's own track, and all else below it.
      if (span.track == SpanTrack::kRuns) at->second.lanes.push_back(at->second.parent);
    }
    return at->second;
  }

  uint64_t thread_track(uint32_t thread) {
    const auto [at, is_new] = threads_.try_emplace(thread, next_track_);
    if (is_new) {
      ++next_track_;
      const auto name = thread_names_.find(thread);
      packets_.thread(at->second, recording_.process.pid, uint64_t{thread} + 1,
                      name == thread_names_.end() ? "thread" : recording_.text(name->second));
    }
    return at->second;
  }

  uint64_t lane_of(Track& track, size_t lane) {
    while (track.lanes.size() <= lane) {
      const size_t number = track.lanes.size() + 1;
      track.lanes.push_back(next_track_++);
      packets_.track(track.lanes.back(), track.parent,
                     number == 1 ? track.name : track.name + " " + std::to_string(number));
    }
    return track.lanes[lane];
  }

  TrackEvent event_of(const Span& span) const {
    switch (span.kind) {
      case SpanKind::kReplay:
        return event_of_replay(recording_.replays[span.place]);
      case SpanKind::kNode:
        return event_of_node(span.place);
      case SpanKind::kOp:
        break;
    }
    return event_of_op(span.place);
  }

  TrackEvent event_of_replay(const ReplayEvent& replay) const {
    TrackEvent event{.name = labels_.of(replay.region), .category = "replay"};
    event.annotations = {{"phase", phase_name(OpPhase::kReplay)},
                         {"from", replay.from_function ? "its function" : "its tape"}};
    if (replay.threw) event.annotations.emplace_back("threw", "yes");
    return event;
  }

  TrackEvent event_of_node(size_t place) const {
    TrackEvent event{.name = recording_.text(recording_.nodes[place].name), .category = "node"};
    if (const size_t maker = makers_[place]; maker != kNoOp) {
      event.annotations.emplace_back("made_by", recording_.text(recording_.ops[maker].name));
      add_line(recording_.ops[maker], event.annotations);
    }
    return event;
  }

  TrackEvent event_of_op(size_t place) const {
    const OpEvent& op = recording_.ops[place];
    TrackEvent event{.name = recording_.text(op.name), .category = "op"};
    event.annotations = annotations_of(op);
    if (forwards_[place] != kNoOp) {
      event.ended_flows = {flow_of(place)};
      if (op.line == 0) add_line(recording_.ops[forwards_[place]], event.annotations);
    }
    if (const auto replays = replays_of_.find(place); replays != replays_of_.end())
      event.flows = replays->second;
    return event;
  }

  std::vector<Annotation> annotations_of(const OpEvent& op) const {
    std::vector<Annotation> all = {{"phase", phase_name(op.phase)}};
    if (op.region != 0) all.emplace_back("region", labels_.of(op.region));
    if (op.end_slot > op.first_slot) {
      all.emplace_back("slots",
                       std::to_string(op.first_slot) + " to " + std::to_string(op.end_slot - 1));
    }
    if (op.call != 0) all.emplace_back("call", recording_.text(op.call));
    add_line(op, all);
    all.emplace_back("arguments", detail::words_of_tensors(recording_, op.arguments));
    if (!op.values.empty())
      all.emplace_back("other_arguments", detail::words_of_values(recording_, op.values));
    all.emplace_back("results", detail::words_of_tensors(recording_, op.results));
    if (op.threw) all.emplace_back("threw", "yes");
    return all;
  }

  void add_line(const OpEvent& op, std::vector<Annotation>& annotations) const {
    if (op.line != 0) annotations.emplace_back("line", recording_.text(op.line));
  }

  const Recording& recording_;
  detail::PerfettoPackets packets_;
  const detail::RegionLabels labels_;
  const std::vector<size_t> forwards_;
  const std::vector<size_t> makers_;
  std::unordered_map<size_t, std::vector<uint64_t>> replays_of_;  // flows, by op of the forward
  std::unordered_map<uint32_t, StringId> thread_names_;
  std::unordered_map<uint32_t, uint64_t> threads_;  // their tracks
  std::map<std::pair<uint32_t, SpanTrack>, Track> tracks_;
  uint64_t process_ = 0;
  uint64_t next_track_ = 1;
};

}  // namespace

void write_perfetto_trace(const Recording& recording, std::ostream& out) {
  PerfettoTrace(recording, out).run();
}

}  // namespace remat
