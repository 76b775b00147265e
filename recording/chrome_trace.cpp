// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/chrome_trace.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/region_labels.h>
#include <remat/recording/replay_links.h>

namespace remat {
namespace {

using Json = nlohmann::ordered_json;

enum class Track : uint8_t { kOps, kReplays, kNodes };
constexpr const char* kTracks[] = {"", ", replays", ", backward"};
constexpr uint32_t kTrackCount = 3;

uint32_t number_of(uint32_t thread, Track track) {
  return thread * kTrackCount + static_cast<uint32_t>(track);
}

double us(TimeNs ns) {
  return static_cast<double>(ns) / 1000;
}

Json words_of(const Recording& recording, const std::vector<RecordedTensor>& tensors) {
  Json all = Json::array();
  for (const RecordedTensor& tensor : tensors) all.push_back(recording.words_of(tensor));
  return all;
}

Json by_kind(const AliveByKind& alive) {
  Json json = Json::object();
  for (size_t kind = 0; kind < kBlockKinds; ++kind)
    json[kind_name(static_cast<BlockKind>(kind))] = alive.bytes[kind];
  return json;
}

class Writer {
 public:
  Writer(const Recording& recording, std::ostream& out)
      : recording_(recording), out_(out), labels_(recording) {}

  void run() {
    out_ << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    for (const auto& op : recording_.ops) write(op);
    const std::vector<size_t> forwards = forward_ops(recording_);
    for (size_t i = 0; i < forwards.size(); ++i) {
      if (forwards[i] != kNoOp)
        arrow(place_of(recording_.ops[forwards[i]]), place_of(recording_.ops[i]));
    }
    for (const auto& node : recording_.nodes)
      span(recording_.text(node.name), "node", node, number_of(node.thread, Track::kNodes), {});
    for (const auto& replay : recording_.replays)
      span(labels_.of(replay.region), "replay", replay, number_of(replay.thread, Track::kReplays),
           {});
    for (const AliveByKind& alive : alive_by_kind(recording_, memory_blocks(recording_))) {
      event({{"ph", "C"},
             {"name", "bytes alive"},
             {"pid", pid()},
             {"ts", us(alive.time_ns)},
             {"args", by_kind(alive)}});
    }
    for (const auto& mark : recording_.marks) {
      event({{"ph", "i"},
             {"s", "g"},
             {"name", recording_.text(mark.name)},
             {"pid", pid()},
             {"tid", number_of(mark.thread, Track::kOps)},
             {"ts", us(mark.time_ns)}});
    }
    for (const auto& [track, name] : tracks_) {
      event({{"ph", "M"},
             {"name", "thread_name"},
             {"pid", pid()},
             {"tid", track},
             {"args", {{"name", name}}}});
    }
    out_ << "\n]}\n";
  }

 private:
  void write(const OnThread<OpEvent>& op) {
    Json args = {{"phase", phase_name(op.phase)}};
    if (op.region != 0) args["region"] = labels_.of(op.region);
    if (op.end_slot > op.first_slot) args["slots"] = {op.first_slot, op.end_slot};
    if (op.threw) args["threw"] = true;
    if (op.line != 0) args["line"] = recording_.text(op.line);
    args["arguments"] = words_of(recording_, op.arguments);
    args["results"] = words_of(recording_, op.results);
    span(recording_.text(op.name), "op", op, place_of(op).first, std::move(args));
  }

  /// Number of an op's track, and the time when the op began.
  static std::pair<uint32_t, TimeNs> place_of(const OnThread<OpEvent>& op) {
    const Track track = op.phase == OpPhase::kReplay ? Track::kReplays : Track::kOps;
    return {number_of(op.thread, track), op.begin_ns};
  }

  void arrow(std::pair<uint32_t, TimeNs> from, std::pair<uint32_t, TimeNs> to) {
    const Json json = {{"id", ++arrows_}, {"name", "replay"}, {"cat", "replay"}, {"pid", pid()}};
    Json begin = json;
    begin.update({{"ph", "s"}, {"tid", from.first}, {"ts", us(from.second)}});
    event(begin);
    Json end = json;
    end.update({{"ph", "f"}, {"bp", "e"}, {"tid", to.first}, {"ts", us(to.second)}});
    event(end);
  }

  template <class Event>
  void span(const std::string& name, const char* category, const Event& of, uint32_t track,
            Json args) {
    const auto kind = static_cast<size_t>(track % kTrackCount);
    tracks_.emplace(track, "thread " + std::to_string(track / kTrackCount) + kTracks[kind]);
    event({{"ph", "X"},
           {"name", name},
           {"cat", category},
           {"pid", pid()},
           {"tid", track},
           {"ts", us(of.begin_ns)},
           {"dur", us(of.end_ns - of.begin_ns)},
           {"args", args.is_null() ? Json::object() : std::move(args)}});
  }

  void event(const Json& json) {
    out_ << (is_first_ ? "\n" : ",\n") << json.dump(-1, ' ', false, Json::error_handler_t::replace);
    is_first_ = false;
  }

  uint64_t pid() const { return recording_.process.pid; }

  const Recording& recording_;
  std::ostream& out_;
  const detail::RegionLabels labels_;
  bool is_first_ = true;
  int64_t arrows_ = 0;
  std::map<uint32_t, std::string> tracks_;
};

}  // namespace

void write_chrome_trace(const Recording& recording, std::ostream& out) {
  Writer(recording, out).run();
}

}  // namespace remat
