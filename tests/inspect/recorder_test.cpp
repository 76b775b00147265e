// SPDX-License-Identifier: BSD-3-Clause

// A recorder writes the events of the program.
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/remat.h>

#include "inspect/recorded_program.h"
#include "support/catch.h"
#include "support/default_device.h"

namespace remat {
namespace {

using test::recording_of;

/// Returns the names of a phase's ops that no other op has called.
std::vector<std::string> ops_of(const Recording& recording, OpPhase phase) {
  std::vector<std::string> names;
  for (const auto& op : recording.ops) {
    if (op.phase == phase && op.depth == 0) names.push_back(recording.text(op.name));
  }
  return names;
}

int64_t count(const std::vector<std::string>& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name);
}

at::Tensor chain(const at::Tensor& x) {
  return x.sin().exp().tanh();
}

at::Tensor leaf() {
  return torch::linspace(-1, 1, 32).view({4, 8}).clone().requires_grad_();
}

std::string label_of(const Recording& recording, uint64_t region) {
  for (const auto& told : recording.regions) {
    if (told.region == region) return recording.text(told.label);
  }
  return "";
}

const std::vector<std::string> kChain = {"aten::sin", "aten::exp", "aten::tanh"};

}  // namespace

TEST_CASE("A recording has the ops of forward, replay and backward", "[inspect][recorder]") {
  for (const ReplayEngine replay : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
    const at::Tensor x = leaf();
    checkpoint({.replay = replay})(chain)(x).sum().backward();  // compared by hashes, if taped
    const Recording recording = recording_of([&](Recorder& recorder) {
      checkpoint({.name = "block", .replay = replay})(chain)(x).sum().backward();
      recorder.mark("step");
    });
    CHECK(ops_of(recording, OpPhase::kForward) == kChain);
    const auto op = std::find_if(recording.ops.begin(), recording.ops.end(),
                                 [](const auto& one) { return one.is_seen; });
    REQUIRE(op != recording.ops.end());
    if (!default_device().is_cuda()) CHECK(recording.text(op->keys) == "CPU, AutogradCPU");
    std::vector<std::string> replay_ops = ops_of(recording, OpPhase::kReplay);
    // A part of a result on a device is copied to the host to be compared.
    if (default_device().is_cuda()) std::erase(replay_ops, "aten::_to_copy");
    CHECK(replay_ops == kChain);
    CHECK(count(ops_of(recording, OpPhase::kOutside), "aten::sum") == 1);
    const auto backward = ops_of(recording, OpPhase::kBackward);
    CHECK(count(backward, "aten::cos") == 1);
    CHECK(count(backward, "aten::tanh_backward") == 1);
    REQUIRE(recording.marks.size() == 1);
    CHECK(recording.text(recording.marks[0].name) == "step");
    std::vector<std::string> nodes;
    for (const auto& node : recording.nodes) nodes.push_back(recording.text(node.name));
    CHECK(count(nodes, "SinBackward0") == 1);
    REQUIRE(recording.replays.size() == 1);
    CHECK(recording.replays[0].from_function == (replay == ReplayEngine::kFunction));
    CHECK(!recording.replays[0].threw);
  }
}

TEST_CASE("An op of a recording says where it ran, on what, and what autograd saved of it",
          "[inspect][recorder]") {
  const at::Tensor x = leaf();
  const Recording recording =
      recording_of([&](Recorder&) { checkpoint({.name = "block"})(chain)(x).sum().backward(); });
  uint32_t slots = 0;
  uint64_t made = 0;
  for (const auto& op : recording.ops) {
    if (op.phase != OpPhase::kForward) continue;
    CHECK(label_of(recording, op.region).find("block") != std::string::npos);
    CHECK(op.first_slot == slots);
    slots = op.end_slot;
    REQUIRE(op.arguments.size() == 1);
    REQUIRE(op.results.size() == 1);
    const RecordedLayout& layout = recording.layouts[op.results[0].layout];
    CHECK(layout.sizes == std::vector<int64_t>{4, 8});
    CHECK(recording.text(layout.dtype) == "float32");
    CHECK(recording.text(layout.device) == (default_device().is_cpu() ? "cpu" : "cuda:0"));
    if (made != 0) CHECK(op.arguments[0].address == made);
    made = op.results[0].address;
    CHECK(op.begin_ns <= op.end_ns);
  }
  CHECK(slots == 3);
  REQUIRE(recording.saves.size() == 6);  // in the forward and in the replay
  CHECK(recording.saves[0].slot == 0);
  CHECK(!recording.saves[0].is_kept);
  CHECK(recording.saves[0].tensor.address == reinterpret_cast<uint64_t>(x.storage().data()));
  CHECK(recording.loads.size() == 3);
}

TEST_CASE("Records of a tape link an op to its replay", "[inspect][recorder]") {
  const at::Tensor x = leaf();
  const auto step = [&] {
    checkpoint({.replay = ReplayEngine::kTape, .cuts = Cuts{.positions = {1, 2}}})(chain)(x)
        .sum()
        .backward();
  };
  step();
  const Recording recording = recording_of([&](Recorder&) { step(); });
  std::map<uint32_t, std::string> forward;
  std::map<uint32_t, std::string> replayed;
  for (const auto& op : recording.ops) {
    if (op.depth > 0 || op.record == OpEvent::kNoRecord) continue;
    (op.phase == OpPhase::kForward ? forward : replayed)[op.record] = recording.text(op.name);
  }
  CHECK(forward == std::map<uint32_t, std::string>{{0, kChain[0]}, {1, kChain[1]}, {2, kChain[2]}});
  CHECK(!replayed.empty());
  for (const auto& [record, name] : replayed) CHECK(forward[record] == name);
}

TEST_CASE("A recording's memory is what the meter counts", "[inspect][recorder]") {
  const at::Tensor x = leaf();
  int64_t peak = 0;
  const Recording recording = recording_of([&](Recorder&) {
    const MemoryMeter meter;
    checkpoint({.name = "block"})(chain)(x).sum().backward();
    peak = meter.peak_bytes(default_device());
  });
  std::map<uint64_t, int64_t> alive;
  int64_t now = 0;
  int64_t most = 0;
  for (const auto& event : recording.memory) {
    if (const auto known = alive.find(event.address); known != alive.end()) {
      now -= known->second;
      alive.erase(known);
    }
    if (event.bytes <= 0) continue;
    alive[event.address] = event.bytes;
    most = std::max(most, now += event.bytes);
  }
  CHECK(peak > 0);
  CHECK(most == peak);
}

TEST_CASE("A recording has ops of all threads, each on its own", "[inspect][recorder]") {
  const Recording recording = recording_of([](Recorder&) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([] {
        for (int step = 0; step < 20; ++step)
          checkpoint({.name = "of thread"})(chain)(leaf()).sum().backward();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::map<uint32_t, int64_t> forward;
  for (const auto& op : recording.ops) {
    if (op.phase == OpPhase::kForward && op.depth == 0) ++forward[op.thread];
  }
  CHECK(forward.size() == 3);
  for (const auto& [thread, ops] : forward) CHECK(ops == 60);
}

TEST_CASE("An op that throws is recorded, and so is what comes after it", "[inspect][recorder]") {
  const Recording recording = recording_of([](Recorder&) {
    const auto fails = [](const at::Tensor& x) { return x.sin().mm(x); };
    CHECK_THROWS_AS(checkpoint({.name = "fails"})(fails)(leaf()), c10::Error);
    checkpoint({.name = "next"})(chain)(leaf()).sum().backward();
  });
  std::map<std::string, int> threw;
  for (const auto& op : recording.ops) {
    if (op.depth == 0 && op.threw) ++threw[recording.text(op.name)];
  }
  CHECK(threw == std::map<std::string, int>{{"aten::mm", 1}});
  CHECK(ops_of(recording, OpPhase::kReplay) == kChain);
}

TEST_CASE("SAVE calls are in a recording, run and left out", "[inspect][recorder]") {
  const Recording recording = recording_of([](Recorder&) {
    const auto fn = [](const at::Tensor& x) {
      return native_op([](const at::Tensor& y) { return y.exp(); }, "kept", Policy::kSave)(x.sin())
          .tanh();
    };
    checkpoint({.name = "block"})(fn)(leaf()).sum().backward();
  });
  std::vector<CallStep> steps;
  for (const auto& call : recording.calls) {
    CHECK(recording.text(call.name) == "kept");
    steps.push_back(call.step);
  }
  const std::vector<CallStep> expected = {CallStep::kBegins, CallStep::kEnds, CallStep::kLeftOut};
  CHECK((steps == expected));
  CHECK(std::count_if(recording.saves.begin(), recording.saves.end(),
                      [](const auto& save) { return save.is_kept; }) == 1);
}

TEST_CASE("Tensors of many dimensions are told apart", "[inspect][recorder]") {
  const std::vector<int64_t> few = {2, 1, 3, 1, 1, 1};
  const std::vector<int64_t> many = {2, 1, 3, 1, 1, 1, 1, 2, 1};
  std::vector<int64_t> others = many;
  std::swap(others[1], others[2]);
  const Recording recording = recording_of([&](const Recorder&) {
    for (const auto& sizes : {few, many, others, many, few}) at::empty(sizes).cosh();
  });
  std::vector<std::vector<int64_t>> got;
  for (const auto& op : recording.ops) {
    if (recording.text(op.name) == "aten::cosh")
      got.push_back(recording.layouts[op.results.at(0).layout].sizes);
  }
  CHECK((got == std::vector<std::vector<int64_t>>{few, many, others, many, few}));
}

TEST_CASE("What a thread did is in the file when the thread has ended", "[inspect][recorder]") {
  const auto path = std::filesystem::temp_directory_path() / ("ended" + std::to_string(getpid()));
  Recorder recorder(path.string());
  constexpr size_t kThreads = 20;
  const at::Tensor ones = at::ones({4});
  for (size_t i = 0; i < kThreads; ++i) std::thread([&] { ones.cosh(); }).join();
  const auto count = [&] {
    const Recording recording = Recording::load(path.string());
    CHECK(recording.damage.empty());
    std::set<uint32_t> threads;
    for (const auto& op : recording.ops) {
      if (recording.text(op.name) == "aten::cosh") threads.insert(op.thread);
    }
    return threads.size();
  };
  CHECK(count() == kThreads);
  recorder.stop();
  CHECK(count() == kThreads);
  std::filesystem::remove(path);
}

TEST_CASE("One recorder at a time, and none where a file cannot be", "[inspect][recorder]") {
  const auto path = std::filesystem::temp_directory_path() / ("second" + std::to_string(getpid()));
  {
    Recorder first(path.string());
    CHECK_THROWS_WITH(Recorder("/tmp/third.rec"),
                      ContainsSubstring("[Recorder] expected no other Recorder in the process"));
    first.stop();
    first.stop();
    first.mark("after the end");
  }
  CHECK(Recording::load(path.string()).marks.empty());
  Recorder("/dev/null").stop();  // another recorder may follow
  CHECK_THROWS_WITH(Recorder("/nowhere/x.rec"),
                    ContainsSubstring("[recording] /nowhere/x.rec: expected a file that can be "
                                      "written, got 'No such file or directory'. Name another."));
  Recorder full("/dev/full");
  CHECK_THROWS_WITH(full.stop(), ContainsSubstring("No space left on device"));
  std::filesystem::remove(path);
}

}  // namespace remat
