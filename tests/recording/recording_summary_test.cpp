// SPDX-License-Identifier: BSD-3-Clause

// Sums and traces of recordings that are small enough to count by hand.
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <remat/recording/chrome_trace.h>
#include <remat/recording/recording_summary.h>

#include "recording/sample_recording.h"
#include "support/catch.h"

using remat::OnThread;
using remat::OpEvent;
using remat::OpPhase;
using remat::OpTotals;
using remat::PeakRow;
using remat::Recording;
using remat::RecordingSummary;
using remat::RegionTotals;

namespace {

/// Two regions with one label; the second has a forward op and its replay from a tape.
Recording two_regions() {
  Recording recording;
  recording.strings = {"", "block", "aten::sin", "cpu"};
  recording.layouts = {{}};
  recording.process.pid = 9;
  recording.regions = {{{5, 1, 1, 0, 0, 1}, 0}, {{6, 2, 2, 0, 0, 1}, 0}, {{7, 1, 1, 0, 0, 1}, 0}};
  recording.replays = {{{49, 59, 2, false, false}, 0}};
  const auto op = [&](int64_t begin, int64_t end, OpPhase phase, uint64_t region, uint32_t depth) {
    OpEvent event;
    event.begin_ns = begin;
    event.end_ns = end;
    event.name = 2;
    event.phase = phase;
    event.region = region;
    event.depth = depth;
    event.number = recording.ops.size() + 1;
    if (region == 2) {
      event.record = 4;
      event.is_seen = true;
    }
    recording.ops.push_back({event, 0});
  };
  op(0, 4, OpPhase::kOutside, 0, 0);
  op(10, 20, OpPhase::kForward, 1, 0);
  op(12, 15, OpPhase::kForward, 1, 1);  // called by the op before
  op(30, 35, OpPhase::kForward, 2, 0);
  op(50, 58, OpPhase::kReplay, 2, 0);
  op(60, 61, OpPhase::kBackward, 0, 0);
  recording.saves = {{{11, 1, 0, {}, false, false}, 0},
                     {{31, 2, 0, {}, false, true}, 0},
                     {{51, 2, 0, {}, true, false}, 0}};
  recording.memory = {{{1, 100, 8, 3, 0}, 0},  {{2, 200, 16, 3, 0}, 0}, {{3, 100, -8, 3, 0}, 0},
                      {{4, 300, 4, 3, 0}, 0},  {{5, 200, 2, 3, 0}, 0},  // its free was not recorded
                      {{70, 999, -5, 3, 0}, 0}};
  return recording;
}

TEST_CASE("A summary counts what ran, by phase and by label", "[recording]") {
  const RecordingSummary summary = remat::summary_of(two_regions());
  CHECK((summary.by_phase[0] == OpTotals{1, 4}));
  CHECK((summary.by_phase[1] == OpTotals{2, 15}));
  CHECK((summary.by_phase[2] == OpTotals{1, 8}));
  CHECK((summary.by_phase[3] == OpTotals{1, 1}));
  REQUIRE(summary.regions.size() == 1);
  CHECK((summary.regions[0] == RegionTotals{"block", 2, {2, 15}, {1, 8}, 1, 1}));
  CHECK(summary.peak_bytes == 24);
  CHECK(summary.peak_ns == 2);
  CHECK(summary.peak.total() == 24);
  CHECK(summary.peak_bytes_of_ops == 0);
  REQUIRE(summary.peak_rows.size() == 1);
  CHECK((summary.peak_rows[0] == PeakRow{.bytes = 24, .blocks = 2}));
  CHECK(summary.end_bytes == 6);
  CHECK(summary.end_ns == 70);
}

TEST_CASE("A Chrome trace has an event for each op, and an arrow from an op to its replay",
          "[recording]") {
  std::ostringstream out;
  remat::write_chrome_trace(two_regions(), out);
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  std::map<std::string, int> kinds;
  std::map<std::string, double> arrow;
  for (const auto& event : trace["traceEvents"]) {
    const std::string kind = event["ph"];
    ++kinds[kind];
    CHECK(event["pid"] == 9);
    if (kind == "s" || kind == "f") arrow[kind] = event["ts"];
    if (kind != "X" || !event["args"].contains("phase") || event["args"]["phase"] != "replay")
      continue;
    CHECK(event["name"] == "aten::sin");
    CHECK(event["tid"] == 1);
    CHECK(event["ts"] == 0.05);
    CHECK(event["dur"] == 0.008);
    CHECK(event["args"]["region"] == "block");
  }
  const std::map<std::string, int> expected = {{"X", 7}, {"C", 6}, {"s", 1}, {"f", 1}, {"M", 2}};
  CHECK(kinds == expected);
  CHECK((arrow == std::map<std::string, double>{{"s", 0.03}, {"f", 0.05}}));
}

TEST_CASE("A Chrome trace of any names is JSON", "[recording]") {
  Recording recording = remat::test::sample_recording(0);
  for (std::string& text : recording.strings) text += "\"\\\n\xff\x01";
  std::ostringstream out;
  remat::write_chrome_trace(recording, out);
  CHECK(nlohmann::json::parse(out.str())["traceEvents"].size() == 2 + 2 + 1 + 2 + 1 + 4);
}

}  // namespace
