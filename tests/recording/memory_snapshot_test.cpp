// SPDX-License-Identifier: BSD-3-Clause

// Snapshots of a recording for PyTorch's memory viewer.
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <remat/recording/memory_blocks.h>
#include <remat/recording/memory_snapshot.h>

#include "recording/pickle_reader.h"
#include "recording/sample_recording.h"
#include "support/catch.h"

using nlohmann::json;
using remat::OpEvent;
using remat::OpPhase;
using remat::Recording;
using remat::test::PickleReader;

namespace {

json snapshot_of(const Recording& recording) {
  std::ostringstream out;
  write_memory_snapshot(recording, out);
  return PickleReader(out.str()).run();
}

/// A block that stays, a freed one that belongs to no op, and a later one at its address.
Recording three_blocks() {
  Recording recording;
  recording.strings = {"", "aten::mm", "block", "cpu", "gate", "dir/model.py:12 forward"};
  recording.layouts = {{}};
  recording.process.begin_unix_ns = 5'000'000;
  recording.regions = {{{1, 7, 7, 0, 0, 2}, 0}};
  OpEvent op;
  op.begin_ns = 1000;
  op.end_ns = 2000;
  op.number = 1;
  op.name = 1;
  op.phase = OpPhase::kForward;
  op.region = 7;
  op.is_seen = true;
  op.call = 4;
  op.line = 5;
  recording.ops = {{op, 0}};
  recording.memory = {{{1500, 0x7f0000001000, 4096, 3, 1}, 0},
                      {{3000, 200, 16, 3, 0}, 0},
                      {{4000, 200, -16, 3, 0}, 0},
                      {{5000, 200, 70'000, 3, 0}, 0},
                      {{6000, 999, -5, 3, 0}, 0}};  // from before the recording
  recording.saves = {{{1600, 7, 3, {0, 0x7f0000001000, 0}, false, true}, 0}};
  return recording;
}

std::vector<std::string> actions_of(const json& trace) {
  std::vector<std::string> actions;
  for (const json& entry : trace) actions.push_back(entry["action"]);
  return actions;
}

TEST_CASE("A snapshot tells of each allocation and free, in order", "[recording]") {
  const json traces = snapshot_of(three_blocks())["device_traces"];
  REQUIRE(traces.size() == 1);
  CHECK(actions_of(traces[0]) == std::vector<std::string>{"segment_alloc", "alloc", "segment_alloc",
                                                          "alloc", "free_requested",
                                                          "free_completed", "segment_free",
                                                          "segment_alloc", "alloc"});
  const json& first = traces[0][1];
  CHECK(first["addr"] == 0x7f0000001000);
  CHECK(first["size"] == 4096);
  CHECK(first["stream"] == 0);
  CHECK(first["time_us"] == 5001);  // recording began 5,000 us after 1970, the event 1.5 us later
  CHECK(traces[0][4]["time_us"] == 5004);
  CHECK(traces[0][5]["size"] == 16);
  CHECK(traces[0][8]["size"] == 70'000);
}

TEST_CASE("A block that was freed out of sight ends before what comes to its address",
          "[recording]") {
  Recording recording = three_blocks();
  recording.memory[2].bytes = 32;
  const json trace = snapshot_of(recording)["device_traces"][0];
  CHECK(actions_of(trace) == std::vector<std::string>{"segment_alloc", "alloc", "segment_alloc",
                                                      "alloc", "free_requested", "free_completed",
                                                      "segment_free", "segment_alloc", "alloc",
                                                      "free_requested", "free_completed",
                                                      "segment_free", "segment_alloc", "alloc"});
  CHECK(trace[5]["size"] == 16);
  CHECK(trace[8]["size"] == 32);
}

TEST_CASE("The frames of a block say why it lives", "[recording]") {
  const json snapshot = snapshot_of(three_blocks());
  const json kept = {{{"name", "aten::mm"}, {"filename", "block, slot 3"}, {"line", 0}},
                     {{"name", "forward"}, {"filename", "dir/model.py"}, {"line", 12}},
                     {{"name", "kept"}, {"filename", "call 'gate'"}, {"line", 0}}};
  CHECK(snapshot["device_traces"][0][1]["frames"] == kept);
  const json outside = {{{"name", "outside of regions"}, {"filename", "memory"}, {"line", 0}}};
  CHECK(snapshot["device_traces"][0][3]["frames"] == outside);
  CHECK(snapshot["device_traces"][0][5]["frames"] == outside);
  const json& segments = snapshot["segments"];
  REQUIRE(segments.size() == 2);
  CHECK(segments[0]["frames"] == kept);
  CHECK(segments[0]["blocks"][0]["frames"] == kept);
}

TEST_CASE("A block that another region saves has the slot of that one", "[recording]") {
  Recording recording = three_blocks();
  recording.saves[0].region = 8;  // a region that is not in the recording
  CHECK(snapshot_of(recording)["segments"][0]["frames"][0]["filename"] == "region 8, slot 3");
}

TEST_CASE("The segments of a snapshot are what is alive in the end", "[recording]") {
  const Recording recording = three_blocks();
  int64_t alive = 0;
  const json snapshot = snapshot_of(recording);
  for (const json& segment : snapshot["segments"]) {
    REQUIRE(segment["blocks"].size() == 1);
    CHECK(segment["blocks"][0]["size"] == segment["total_size"]);
    CHECK(segment["blocks"][0]["address"] == segment["address"]);
    CHECK(segment["blocks"][0]["state"] == "active_allocated");
    alive += segment["total_size"].get<int64_t>();
  }
  CHECK(alive == 74'096);
  CHECK(alive == alive_by_kind(recording, memory_blocks(recording)).back().total());
}

TEST_CASE("Devices have the numbers of their names, and the CPU the first that is free",
          "[recording]") {
  Recording recording;
  recording.strings = {"", "cpu", "cuda:2", "cuda:0", "cuda:99999999999999999999"};
  recording.layouts = {{}};
  for (uint32_t device = 1; device <= 4; ++device)
    recording.memory.push_back({{device, 100 * device, 8, device, 0}, 0});
  const json snapshot = snapshot_of(recording);
  CHECK(snapshot["device_traces"].size() == 4);
  std::vector<int> devices;
  for (const json& segment : snapshot["segments"]) devices.push_back(segment["device"]);
  CHECK(devices == std::vector<int>{1, 2, 0, 3});
  CHECK(snapshot["device_traces"][2][0]["addr"] == 200);
}

TEST_CASE("A pickle has numbers of all sizes and many texts", "[recording]") {
  Recording recording = three_blocks();
  for (uint64_t i = 1; i <= 300; ++i) {  // more texts than one-byte numbers can count
    recording.strings.push_back("cpu:" + std::to_string(i) + " \xC3\xA9");
    const auto device = static_cast<remat::StringId>(recording.strings.size() - 1);
    const auto bytes = static_cast<int64_t>(i * i * i * i);  // numbers of one to eight bytes
    recording.memory.push_back({{static_cast<int64_t>(7000 + i), i << 8U, bytes, device, 0}, 0});
    recording.memory.push_back({{static_cast<int64_t>(7000 + i), 300, 10, 3, 0}, 0});
    recording.strings.push_back("aten::op" + std::to_string(i));
    OpEvent op = recording.ops[0];
    op.number = i + 1;
    op.name = device + 1;
    recording.ops.push_back({op, 0});
    recording.memory.push_back({{static_cast<int64_t>(7000 + i), 400, 10, 3, i + 1}, 0});
  }
  std::set<std::pair<uint64_t, int64_t>> blocks;
  std::set<std::string> ops;
  const json snapshot = snapshot_of(recording);
  for (const json& trace : snapshot["device_traces"]) {
    for (const json& entry : trace) {
      blocks.emplace(entry["addr"], entry["size"]);
      ops.insert(entry["frames"][0]["name"]);
    }
  }
  for (uint64_t i = 1; i <= 300; ++i) {
    CHECK(blocks.count({i << 8U, static_cast<int64_t>(i * i * i * i)}) == 1);
    CHECK(ops.count("aten::op" + std::to_string(i)) == 1);
  }
}

TEST_CASE("Bytes of a name that are not UTF-8 are replaced in a pickle", "[recording]") {
  Recording recording = three_blocks();
  // U+00E9 and U+1F600 stay. A lone first byte, a surrogate, an overlong encoding and a byte that
  // UTF-8 does not use are replaced.
  recording.strings[1] = "\xC3\xA9\xF0\x9F\x98\x80|\xC3|\xED\xA0\x80|\xC0\xAF|\xFF";
  const std::string r = "\xEF\xBF\xBD";
  const json snapshot = snapshot_of(recording);
  CHECK(snapshot["device_traces"][0][1]["frames"][0]["name"] ==
        "\xC3\xA9\xF0\x9F\x98\x80|" + r + "|" + r + r + r + "|" + r + r + "|" + r);
}

}  // namespace
