// SPDX-License-Identifier: BSD-3-Clause

// Makes the sample recording, and writes and compares recordings.
#include "recording/sample_recording.h"

#include <algorithm>
#include <vector>

#include <remat/recording/recording_writer.h>

namespace remat::test {
namespace {

template <class Event>
const Event& event_of(const OnThread<Event>& event) {
  return event;
}

}  // namespace

Recording sample_recording(int64_t seed) {
  Recording recording;
  recording.strings = {"",      "train.py",     "2.11.0", "float32", "cpu",    "aten::mul.Tensor",
                       "block", "MulBackward0", "gate",   "SAVE",    "step 1", "CPU, AutogradCPU"};
  recording.layouts = {
      {}, {3, 4, {2, 3 + seed}, {}, true}, {3, 4, {2, 3}, {1, 2}, false}, {3, 4, {}, {}, false}};
  recording.process = {1'700'000'000'000'000'000 + seed, 42, 1, 2};
  const RecordedTensor a{1, 0x7f0012345600 + static_cast<uint64_t>(seed), 0};
  const RecordedTensor b{2, 0x7f0012340000, 7};
  const RecordedTensor none{};
  OpEvent op;
  op.begin_ns = 100 + seed;
  op.end_ns = 250 + seed;
  op.number = 2;
  op.name = 5;
  op.phase = OpPhase::kForward;
  op.region = 7;
  op.first_slot = 2;
  op.end_slot = 4;
  op.kept = 1;
  op.record = 3;
  op.is_seen = true;
  op.call = 8;
  op.keys = 11;
  op.outer_records = {{6, 4}};
  op.sequence = 11;
  op.line = 1;
  op.arguments = {a, b, none};
  op.values = {{ValueKind::kList, 2},
               {ValueKind::kInt, static_cast<uint64_t>(-seed)},
               {ValueKind::kText, 9}};
  op.results = {b};
  OpEvent outside;
  outside.begin_ns = 300 + seed;
  outside.end_ns = 301 + seed;
  outside.number = 1;
  outside.name = 5;
  outside.depth = 1;
  outside.threw = true;
  recording.ops = {{op, 0}, {outside, 1}};
  recording.memory = {{{110 + seed, a.address, 4096, 4, 2}, 0},
                      {{400 + seed, a.address, -1, 4, 0}, 1}};
  recording.saves = {{{120 + seed, 7, 2, a, false, true}, 0}};
  recording.loads = {{{500 + seed, 7, 2}, 1}};
  recording.nodes = {{{480 + seed, 600 + seed, 7, 11, 5}, 1},
                     {{700 + seed, 701 + seed, 7, NodeEvent::kNoSequence, 0}, 1}};
  recording.regions = {{{90 + seed, 7, 6, 3, 1, 6}, 0}};
  recording.replays = {{{510 + seed, 590 + seed, 7, true, false}, 1}};
  recording.calls = {{{95 + seed, 7, 8, 9, CallStep::kBegins, false}, 0},
                     {{99 + seed, 7, 8, 9, CallStep::kLeftOut, true}, 1}};
  recording.marks = {{{900 + seed, 10}, 0}};
  recording.threads = {{{80 + seed, 1, 1}, 0}, {{470 + seed, 5, 1}, 1}};
  recording.plans = {{{85 + seed, 6, 1000, 900 + seed, 2000, 10}, 0}};
  return recording;
}

void write(const Recording& recording, const std::string& path, size_t parts) {
  RecordingWriter writer(path);
  for (size_t i = 1; i < recording.strings.size(); ++i) writer.string(recording.strings[i]);
  for (size_t i = 1; i < recording.layouts.size(); ++i) writer.layout(recording.layouts[i]);
  detail::ByteWriter process;
  process.add(recording.process);
  writer.write_block(0, process.bytes());
  detail::ByteWriter bytes;
  const auto add = [&](const auto& events, uint32_t thread, size_t part) {
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].thread == thread && i % parts == part) bytes.add(event_of(events[i]));
    }
  };
  for (size_t part = 0; part < parts; ++part) {
    for (const uint32_t thread : {1U, 0U}) {
      add(recording.ops, thread, part);
      add(recording.memory, thread, part);
      add(recording.saves, thread, part);
      add(recording.loads, thread, part);
      add(recording.nodes, thread, part);
      add(recording.regions, thread, part);
      add(recording.replays, thread, part);
      add(recording.calls, thread, part);
      add(recording.marks, thread, part);
      add(recording.threads, thread, part);
      add(recording.plans, thread, part);
      writer.write_block(thread, bytes.bytes());
      bytes.clear();
    }
  }
}

namespace {

template <class Event>
bool equal(const std::vector<OnThread<Event>>& a, const std::vector<OnThread<Event>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.thread == y.thread && event_of(x) == event_of(y);
  });
}

}  // namespace

bool same(const Recording& a, const Recording& b) {
  return a.process == b.process && a.strings == b.strings && a.layouts == b.layouts &&
         equal(a.ops, b.ops) && equal(a.memory, b.memory) && equal(a.saves, b.saves) &&
         equal(a.loads, b.loads) && equal(a.nodes, b.nodes) && equal(a.regions, b.regions) &&
         equal(a.replays, b.replays) && equal(a.calls, b.calls) && equal(a.marks, b.marks) &&
         equal(a.threads, b.threads) && equal(a.plans, b.plans);
}

}  // namespace remat::test
