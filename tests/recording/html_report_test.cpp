// SPDX-License-Identifier: BSD-3-Clause

// Data for the page of a recording; python/tests/test_report_page.py tests what the page shows.
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <remat/recording/html_report.h>
#include <remat/recording/memory_blocks.h>
#include <remat/recording/recording_summary.h>

#include "recording/sample_recording.h"
#include "recording/transformer_recording.h"
#include "support/catch.h"

using nlohmann::json;
using remat::AliveByKind;
using remat::BlockKind;
using remat::kBlockKinds;
using remat::Recording;
using remat::test::transformer_recording;

namespace {

std::string page_of(const Recording& recording, const remat::ReportOptions& options = {}) {
  std::ostringstream out;
  remat::write_report(recording, out, options);
  return out.str();
}

json data_in(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t data = at + begin.size();
  return json::parse(page.substr(data, page.find("</script>", data) - data));
}

json run_of(const Recording& recording, const remat::ReportOptions& options = {}) {
  return data_in(page_of(recording, options))["runs"][0];
}

std::vector<int64_t> sums_of(const json& differences) {
  std::vector<int64_t> all;
  for (const int64_t difference : differences)
    all.push_back(difference + (all.empty() ? 0 : all.back()));
  return all;
}

using Bytes = std::array<int64_t, kBlockKinds>;

/// Returns the chart at each of its moments.
std::vector<AliveByKind> chart_of(const json& run) {
  const std::vector<int64_t> times = sums_of(run["curve"]["time"]);
  std::vector<AliveByKind> chart(times.size());
  for (size_t kind = 0; kind < kBlockKinds; ++kind) {
    const std::vector<int64_t> bytes = sums_of(run["curve"]["bytes"][kind]);
    REQUIRE(bytes.size() == times.size());
    for (size_t i = 0; i < times.size(); ++i) {
      chart[i].time_ns = times[i];
      chart[i].bytes[kind] = bytes[i];
    }
  }
  return chart;
}

/// Returns the sums of the table's rows at each moment.
std::vector<Bytes> rows_at_moments(const json& run, size_t moments) {
  std::vector<Bytes> all(moments, Bytes{});
  const json& alive = run["alive"];
  const std::vector<int64_t> begins = sums_of(alive["begin"]);
  for (size_t row = 0; row < begins.size(); ++row) {
    const size_t kind = alive["origins"][alive["origin"][row].get<size_t>()][0];
    const auto begin = static_cast<size_t>(begins[row]);
    const size_t end = begin + alive["length"][row].get<size_t>();
    REQUIRE(end <= moments);
    for (size_t i = begin; i < end; ++i) all[i][kind] += alive["bytes"][row].get<int64_t>();
  }
  return all;
}

TEST_CASE("A page's rows come to its chart, and the chart to what was alive", "[recording]") {
  const Recording recording = transformer_recording({.steps = 1, .layers = 3});
  const json run = run_of(recording);
  const auto alive = alive_by_kind(recording, memory_blocks(recording));
  const std::vector<AliveByKind> chart = chart_of(run);
  const std::vector<Bytes> rows = rows_at_moments(run, chart.size());
  REQUIRE(chart.size() == alive.size());
  for (size_t i = 0; i < alive.size(); ++i) {
    CHECK(chart[i].time_ns == alive[i].time_ns);
    CHECK(chart[i].bytes == alive[i].bytes);
    CHECK(rows[i] == alive[i].bytes);
  }
  CHECK(run["curve"]["peak"] == peak_of(alive));
  for (size_t kind = 0; kind < kBlockKinds; ++kind) {
    CHECK(std::any_of(alive.begin(), alive.end(),
                      [&](const AliveByKind& moment) { return moment.bytes[kind] > 0; }));
  }
}

TEST_CASE("A page of 100,000 events has less than 1 MB, and the exact peak", "[recording]") {
  const Recording recording = transformer_recording({.steps = 60});
  REQUIRE(remat::test::events_of(recording) > 100'000);
  const std::string page = page_of(recording);
  CHECK(page.size() < 1'000'000);
  const json run = data_in(page)["runs"][0];
  const auto alive = alive_by_kind(recording, memory_blocks(recording));
  const std::vector<AliveByKind> chart = chart_of(run);
  CHECK(chart.size() > 3000);
  CHECK(chart.size() < 6000);
  const size_t peak = run["curve"]["peak"];
  CHECK(chart[peak].time_ns == alive[peak_of(alive)].time_ns);
  CHECK(chart[peak].bytes == alive[peak_of(alive)].bytes);
  CHECK(chart.front().time_ns == alive.front().time_ns);
  CHECK(chart.back().bytes == alive.back().bytes);
  const std::vector<Bytes> rows = rows_at_moments(run, chart.size());
  for (size_t i = 0; i < chart.size(); ++i) CHECK(rows[i] == chart[i].bytes);
}

TEST_CASE("A peak that lasts one event of thousands is in the chart", "[recording]") {
  Recording recording = remat::test::sample_recording(0);
  recording.memory.clear();
  for (int i = 0; i < 5000; ++i) {
    const bool frees = i % 2 == 1;
    recording.memory.push_back(
        {{1000 + 10 * i, 64, frees ? -1 : 100 + (i == 2000 ? 1 : 0), 4, 0}, 0});
  }
  recording.marks = {{{1000 + 10 * 3138 + 5, 10}, 0}};
  const json run = run_of(recording, {.most_points = 40});
  const std::vector<AliveByKind> chart = chart_of(run);
  CHECK(chart.size() <= 44);
  CHECK(chart[run["curve"]["peak"].get<size_t>()].total() == 101);
  CHECK(std::any_of(chart.begin(), chart.end(), [](const AliveByKind& moment) {
    return moment.time_ns == 1000 + 10 * 3138;  // seen at the mark
  }));
}

TEST_CASE("Beyond the most rows the smallest are left out, but for those at the peak",
          "[recording]") {
  const Recording recording = transformer_recording({.steps = 2});
  const json run = run_of(recording, {.most_rows = 120});
  const std::vector<AliveByKind> chart = chart_of(run);
  const std::vector<Bytes> rows = rows_at_moments(run, chart.size());
  CHECK(run["alive"]["bytes"].size() == 120);
  const size_t peak = run["curve"]["peak"];
  CHECK(rows[peak] == chart[peak].bytes);
  for (size_t i = 0; i < chart.size(); ++i) {
    for (size_t kind = 0; kind < kBlockKinds; ++kind) CHECK(rows[i][kind] <= chart[i].bytes[kind]);
  }
  for (const auto& row : run["alive"]["origin"]) CHECK(row < run["alive"]["origins"].size());
}

TEST_CASE("A row says what made its blocks", "[recording]") {
  const json run = run_of(transformer_recording({.steps = 1, .layers = 2}));
  const auto word = [&](const json& number) { return run["words"][number.get<size_t>()]; };
  bool has_kept = false;
  bool has_gradient = false;
  for (const auto& origin : run["alive"]["origins"]) {
    if (origin[0] == static_cast<int>(BlockKind::kKept)) {
      has_kept = true;
      CHECK(word(origin[1]) == "aten::_scaled_dot_product_flash_attention");
      CHECK(origin[4] == 2);  // the result's slot
      CHECK(word(origin[5]) == "attention (SAVE)");
      CHECK(word(origin[6]) == "gpt.py:41 forward");
    }
    if (origin[0] == static_cast<int>(BlockKind::kWeightGradient)) {
      has_gradient = true;
      CHECK(word(origin[2]) == "AddmmBackward0");
      CHECK(word(origin[3]).get<std::string>().rfind("h.", 0) == 0);  // label of the node's op
    }
  }
  CHECK(has_kept);
  CHECK(has_gradient);
}

TEST_CASE("Regions of a page are those of the summary, with what they held", "[recording]") {
  const Recording recording = transformer_recording({.steps = 2, .layers = 3});
  const json run = run_of(recording);
  const remat::RecordingSummary summary = summary_of(recording);
  REQUIRE(run["regions"].size() == 3);
  std::map<std::string, json> rows;
  for (const auto& row : run["regions"]) rows[run["words"][row[0].get<size_t>()]] = row;
  for (const remat::RegionTotals& region : summary.regions) {
    const json& row = rows.at(region.label);
    CHECK(row[1] == region.regions);
    CHECK(row[2] == region.forward.ops);
    CHECK(row[3] == region.forward.ns);
    CHECK(row[4] == region.replay.ops);
    CHECK(row[5] == region.replay.ns);
    CHECK(row[6] == region.slots);
    CHECK(row[7] == region.kept_slots);
    CHECK(row[8] == 2 * 6'291'456);  // a result of a SAVE call in each step
  }
  CHECK(run["summary"]["peak_bytes"] == summary.peak_bytes);
  CHECK(run["summary"]["phases"][2][0] == summary.by_phase[2].ops);
}

TEST_CASE("Labels of thousands of regions are folded by their numbers", "[recording]") {
  Recording recording = remat::test::sample_recording(0);
  recording.regions.clear();
  for (uint64_t i = 0; i < 1500; ++i) {
    recording.strings.push_back("block 1" + std::to_string(i) + ".x");
    const auto label = static_cast<remat::StringId>(recording.strings.size() - 1);
    recording.regions.push_back({{10, i + 7, i + 7, 0, 0, label}, 0});
  }
  const json run = run_of(recording);
  REQUIRE(run["regions"].size() == 1);
  CHECK(run["words"][run["regions"][0][0].get<size_t>()] == "block *.x");
  CHECK(run["regions"][0][1] == 1500);
}

TEST_CASE("A plan stands beside the most that was alive until the next of its label",
          "[recording]") {
  Recording recording = remat::test::sample_recording(0);
  const auto memory = [](int64_t time, uint64_t address, int64_t bytes) {
    return remat::OnThread<remat::MemoryEvent>{{time, address, bytes, 4, 0}, 0};
  };
  recording.memory = {memory(10, 1, 30),   memory(120, 2, 70), memory(130, 2, -1),
                      memory(210, 3, 500), memory(220, 3, -1), memory(230, 4, 9)};
  recording.plans = {{{100, 6, 1000, 60, 2000, 10}, 0},
                     {{150, 8, 1, 1, 1, 10}, 0},
                     {{200, 6, 400, 600, 2000, 10}, 0}};
  const json plans = run_of(recording)["plans"];
  REQUIRE(plans.size() == 3);
  const json first = {100, 200, plans[0][2], 1000, 60, 2000, 30, 70};
  CHECK(plans[0] == first);
  CHECK(plans[1][7] == 500);
  CHECK(plans[2][6] == 30);
  CHECK(plans[2][7] == 500);
}

TEST_CASE("A plan is measured in its steps, not by what the program makes between and after them",
          "[recording]") {
  Recording recording = remat::test::sample_recording(0);
  recording.ops.clear();
  recording.loads.clear();
  const auto memory = [](int64_t time, uint64_t address, int64_t bytes) {
    return remat::OnThread<remat::MemoryEvent>{{time, address, bytes, 4, 0}, 0};
  };
  const auto op = [&](int64_t time, remat::OpPhase phase) {
    remat::OpEvent event;
    event.begin_ns = time;
    event.end_ns = time + 1;
    event.phase = phase;
    recording.ops.push_back({event, 0});
  };
  const auto label = static_cast<remat::StringId>(recording.strings.size());
  recording.strings.push_back("GPT");
  recording.strings.push_back("segment 0 of region 'GPT'");
  recording.plans = {{{100, label, 1000, 60, 2000, 10}, 0}};
  recording.regions = {{{110, 11, 10, 0, 0, label + 1}, 0}, {{310, 21, 20, 0, 0, label + 1}, 0}};
  recording.loads = {{{150, 11, 0}, 0}, {{350, 21, 0}, 0}};
  op(110, remat::OpPhase::kForward);
  op(155, remat::OpPhase::kBackward);
  op(200, remat::OpPhase::kOutside);  // the first step is over
  op(310, remat::OpPhase::kForward);
  op(360, remat::OpPhase::kBackward);
  op(400, remat::OpPhase::kOutside);
  recording.memory = {memory(10, 1, 30),   memory(120, 2, 70),  memory(130, 2, -1),
                      memory(210, 3, 500), memory(220, 3, -1),  memory(230, 4, 9),
                      memory(320, 5, 40),  memory(360, 6, 45),  memory(365, 5, -1),
                      memory(366, 6, -1),  memory(410, 7, 900), memory(420, 7, -1)};
  const json plans = run_of(recording)["plans"];
  REQUIRE(plans.size() == 1);
  CHECK(plans[0][7] == 85);  // the peak of the second step; the first has 70
}

TEST_CASE("Text of a recording is no markup of the page", "[recording]") {
  const std::string evil = "</script><img src=x onerror=alert(1)><!--\u2028&amp;\"\\\n";
  Recording recording = remat::test::sample_recording(0);
  for (std::string& text : recording.strings) text += evil;
  const std::string page = page_of(recording, {.name = evil});
  CHECK(page.find("<img") == std::string::npos);
  CHECK(page.find("\u2028") == std::string::npos);
  const json run = data_in(page)["runs"][0];
  CHECK(run["name"] == evil);
  CHECK(run["marks"][0][0] == 900);
  CHECK(run["words"][run["marks"][0][1].get<size_t>()] == "step 1" + evil);
  recording.strings[6] = "\xff\xfe" + std::string(3000, 'a');
  CHECK(data_in(page_of(recording))["runs"][0]["words"].dump().size() < 2000);
}

TEST_CASE("A page loads nothing, and has places for all that it shows", "[recording]") {
  const std::string page = page_of(remat::test::sample_recording(0));
  for (const std::string outside : {"src=\"", "@import", "url(http", "fetch(", "XMLHttpRequest"})
    CHECK(page.find(outside) == std::string::npos);
  CHECK_THAT(page, ContainsSubstring("default-src 'none'"));
  CHECK_THAT(page, ContainsSubstring("prefers-color-scheme: dark"));
  CHECK(page.find("innerHTML") == std::string::npos);
  size_t at = 0;
  while ((at = page.find("byId(\"", at)) != std::string::npos) {
    at += std::string("byId(\"").size();
    const std::string id = page.substr(at, page.find('"', at) - at);
    CHECK_THAT(page, ContainsSubstring("id=\"" + id + "\""));
  }
}

TEST_CASE("A page of two recordings has both; one of nothing has no peak", "[recording]") {
  std::ostringstream out;
  Recording empty;
  empty.strings = {""};
  remat::write_report(transformer_recording({.steps = 1}), empty, out,
                      {.name = "a", .second_name = "b"});
  const json runs = data_in(out.str())["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["name"] == "a");
  CHECK(runs[0]["curve"]["peak"].is_number());
  CHECK(runs[1]["name"] == "b");
  CHECK(runs[1]["curve"]["peak"].is_null());
  CHECK(runs[1]["curve"]["time"].empty());
}

}  // namespace
