// SPDX-License-Identifier: BSD-3-Clause

// Perfetto traces, parsed by the field numbers of Perfetto's definitions.
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <remat/recording/perfetto_trace.h>

#include "recording/protobuf_reader.h"
#include "recording/sample_recording.h"
#include "support/catch.h"

using remat::OpEvent;
using remat::OpPhase;
using remat::Recording;
using remat::test::ProtobufMessage;

namespace {

struct Slice {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string track;
  size_t depth = 0;  ///< slices around it on the track
  std::map<std::string, std::string> annotations;
  std::vector<uint64_t> flows;
  std::vector<uint64_t> ended_flows;
};

/// Reads a trace as Perfetto does: names by their numbers, slices by their beginnings and ends.
struct Trace {
  explicit Trace(const Recording& recording) {
    std::ostringstream out;
    write_perfetto_trace(recording, out);
    for (ProtobufMessage& packet : ProtobufMessage(out.str()).messages(1)) {
      CHECK(packet.number(10) == 1);                        // the sequence
      CHECK(packet.number(13) == (flags_seen_ ? 2U : 3U));  // SEQ_NEEDS_INCREMENTAL_STATE
      flags_seen_ = true;
      for (ProtobufMessage& interned : packet.messages(12)) read_names(interned);
      for (ProtobufMessage& track : packet.messages(60)) read_track(track);
      for (ProtobufMessage& event : packet.messages(11)) read_event(packet.number(8), event);
    }
    for (const auto& [track, open] : open_) CHECK(open.empty());
  }

  std::vector<Slice> named(const std::string& name) const {
    std::vector<Slice> found;
    for (const Slice& slice : slices) {
      if (slice.name == name) found.push_back(slice);
    }
    return found;
  }

  std::map<uint64_t, std::string> tracks;
  std::map<uint64_t, uint64_t> parents;
  std::vector<Slice> slices;
  std::map<std::string, std::vector<int64_t>> counters;
  std::vector<std::string> instants;

 private:
  void read_names(ProtobufMessage& interned) {
    for (const uint32_t field : {1U, 2U, 3U, 29U}) {
      for (ProtobufMessage& entry : interned.messages(field))
        CHECK(names_[field].emplace(entry.number(1), entry.text(2)).second);
    }
  }

  void read_track(ProtobufMessage& track) {
    const uint64_t uuid = track.number(1);
    std::string name;
    if (track.has(2)) name = track.text(2);
    if (track.has(3)) name = "process " + ProtobufMessage(track.text(3)).text(6);
    if (track.has(4)) name = "thread " + ProtobufMessage(track.text(4)).text(5);
    if (track.has(5)) parents[uuid] = track.number(5);
    CHECK(tracks.emplace(uuid, name).second);
  }

  void read_event(uint64_t time, ProtobufMessage& event) {
    const uint64_t track = event.number(11);
    REQUIRE(tracks.count(track) == 1);
    switch (event.number(9)) {
      case 1:
        return begin(time, tracks[track], open_[track], event);
      case 2:
        REQUIRE(!open_[track].empty());
        slices[open_[track].back()].end = time;
        return open_[track].pop_back();
      case 3:
        return instants.push_back(names_[2].at(event.number(10)));
      default:
        counters[tracks[track]].push_back(static_cast<int64_t>(event.number(30)));
    }
  }

  void begin(uint64_t time, const std::string& track, std::vector<size_t>& open,
             ProtobufMessage& event) {
    Slice slice{names_[2].at(event.number(10)), time, 0, track, open.size(), {}, {}, {}};
    for (ProtobufMessage& annotation : event.messages(4)) {
      slice.annotations[names_[3].at(annotation.number(1))] = names_[29].at(annotation.number(17));
    }
    slice.flows = event.numbers(47);
    slice.ended_flows = event.numbers(48);
    open.push_back(slices.size());
    slices.push_back(slice);
  }

  bool flags_seen_ = false;
  std::map<uint32_t, std::map<uint64_t, std::string>> names_;  // by field
  std::map<uint64_t, std::vector<size_t>> open_;               // by track
};

Recording empty_recording() {
  Recording recording;
  recording.strings = {"",        "aten::sin",         "block", "cpu", "aten::cos",
                       "step.py", "model.py:3 forward"};
  recording.layouts = {{}};
  recording.process = {0, 9, 5, 0};
  recording.threads = {{{0, 1, 5}, 0}};
  return recording;
}

OpEvent& add_op(Recording& recording, int64_t begin, int64_t end, uint32_t depth = 0) {
  OpEvent op;
  op.begin_ns = begin;
  op.end_ns = end;
  op.name = 1;
  op.depth = depth;
  op.number = recording.ops.size() + 1;
  recording.ops.push_back({op, 0});
  return recording.ops.back();
}

/// One op in a region, which a tape runs twice more.
Recording replayed_twice() {
  Recording recording = empty_recording();
  recording.regions = {{{5, 1, 1, 0, 0, 2}, 0}};
  const auto op = [&](int64_t begin, OpPhase phase) {
    OpEvent& added = add_op(recording, begin, begin + 5);
    added.phase = phase;
    added.region = 1;
    added.record = 4;
    added.is_seen = true;
  };
  op(10, OpPhase::kForward);
  recording.ops[0].line = 6;
  op(30, OpPhase::kReplay);
  op(50, OpPhase::kReplay);
  recording.replays = {{{30, 36, 1, false, false}, 0}, {{50, 56, 1, false, false}, 0}};
  return recording;
}

TEST_CASE("A Perfetto trace has a slice for each op, with what is known of it in words",
          "[recording]") {
  const Trace trace(remat::test::sample_recording(0));
  REQUIRE(trace.slices.size() == 5);  // two ops, a replay and two nodes
  const std::vector<Slice> ops = trace.named("aten::mul.Tensor");
  REQUIRE(ops.size() == 2);
  CHECK(ops[0].begin == 100);
  CHECK(ops[0].end == 250);
  CHECK(ops[0].annotations ==
        std::map<std::string, std::string>{{"phase", "forward"},
                                           {"region", "block"},
                                           {"slots", "2 to 3"},
                                           {"call", "gate"},
                                           {"line", "train.py"},
                                           {"arguments", "float32 [2, 3], float32 [2, 3], none"},
                                           {"other_arguments", "[0, 'SAVE']"},
                                           {"results", "float32 [2, 3]"}});
  CHECK(ops[1].annotations.at("threw") == "yes");
  CHECK(ops[0].track == "thread train.py");
  REQUIRE(trace.named("MulBackward0").size() == 2);
  CHECK(trace.named("MulBackward0")[0].track == "backward");
  REQUIRE(trace.named("block").size() == 1);
  CHECK(trace.named("block")[0].track == "replays");
  CHECK(trace.named("block")[0].annotations.at("from") == "its function");
  CHECK(trace.instants == std::vector<std::string>{"step 1"});
  CHECK(trace.tracks.at(1) == "process train.py");
}

TEST_CASE("A flow goes from an op of a forward to each op that runs it again", "[recording]") {
  const Trace trace(replayed_twice());
  const std::vector<Slice> ops = trace.named("aten::sin");
  REQUIRE(ops.size() == 3);
  CHECK(ops[0].flows.size() == 2);
  CHECK(ops[0].ended_flows.empty());
  CHECK(ops[1].ended_flows == std::vector<uint64_t>{ops[0].flows[0]});
  CHECK(ops[2].ended_flows == std::vector<uint64_t>{ops[0].flows[1]});
  CHECK(ops[0].flows[0] != ops[0].flows[1]);
  CHECK(ops[1].flows.empty());
  CHECK(ops[1].annotations.at("line") == "model.py:3 forward");  // the line of the forward
  // The op runs inside its replay, which begins at the same time.
  CHECK(ops[1].track == "replays");
  CHECK(ops[1].depth == 1);
  CHECK(ops[0].track == "thread step.py");
}

TEST_CASE("A replay is around the op that begins with it", "[recording]") {
  Recording recording = empty_recording();
  add_op(recording, 10, 15).phase = OpPhase::kReplay;
  recording.replays = {{{1, 2, 1, false, false}, 0}, {{10, 15, 1, true, false}, 0}};
  const Trace trace(recording);
  REQUIRE(trace.slices.size() == 3);
  CHECK(trace.slices[1].name == "region 1");
  CHECK(trace.slices[1].depth == 0);
  CHECK(trace.slices[2].depth == 1);
}

TEST_CASE("Slices of a track nest, and what overlaps has a track of its own", "[recording]") {
  Recording recording = empty_recording();
  add_op(recording, 10, 30);
  add_op(recording, 10, 20, 1);  // called by the first op
  add_op(recording, 20, 30, 1);  // called by the first, and no child of the second
  add_op(recording, 25, 40);     // ends on another thread
  add_op(recording, 41, 40);     // damaged: it ends before it begins
  const Trace trace(recording);
  REQUIRE(trace.slices.size() == 5);
  CHECK(trace.slices[1].depth == 1);
  CHECK(trace.slices[2].depth == 1);
  CHECK(trace.slices[3].track == "ops 2");
  CHECK(trace.slices[3].depth == 0);
  CHECK(trace.slices[3].end == 40);
  CHECK(trace.slices[4].end == 41);
  CHECK(trace.slices[4].track == trace.slices[0].track);
  for (const auto& [track, name] : trace.tracks) {
    if (name == "ops 2") CHECK(trace.tracks.at(trace.parents.at(track)) == "thread step.py");
  }
}

TEST_CASE("Counters tell the bytes that are alive, of all and by kind", "[recording]") {
  Recording recording = empty_recording();
  recording.memory = {{{1, 100, 8, 3, 0}, 0}, {{2, 200, 16, 3, 0}, 0}, {{3, 100, -8, 3, 0}, 0}};
  const Trace trace(recording);
  CHECK(trace.counters.at("bytes alive") == std::vector<int64_t>{8, 24, 16});
  CHECK(trace.counters.at("bytes alive: outside of regions") == std::vector<int64_t>{8, 24, 16});
  CHECK(trace.counters.count("bytes alive: kept") == 0);  // no bytes to show
  CHECK(trace.parents.size() == 1 + 6);
}

TEST_CASE("What is no UTF-8 in a name is replaced in a trace", "[recording]") {
  Recording recording = empty_recording();
  // U+00E9 and U+1F600 stay; a lone first byte, a surrogate and a character that is too long do
  // not.
  recording.strings[1] = "\xC3\xA9\xF0\x9F\x98\x80|\xC3|\xED\xA0\x80|\xC0\xAF|\xFF";
  add_op(recording, 1, 2);
  const std::string r = "\xEF\xBF\xBD";
  CHECK(Trace(recording).slices[0].name ==
        "\xC3\xA9\xF0\x9F\x98\x80|" + r + "|" + r + r + r + "|" + r + r + "|" + r);
}

}  // namespace
