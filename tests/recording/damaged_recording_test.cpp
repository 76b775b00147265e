// SPDX-License-Identifier: BSD-3-Clause

// A damaged recording is read up to the damage, or an error says that the file is no recording.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <remat/recording/chrome_trace.h>
#include <remat/recording/html_report.h>
#include <remat/recording/memory_blocks.h>
#include <remat/recording/memory_snapshot.h>
#include <remat/recording/recording.h>
#include <remat/recording/recording_diff.h>
#include <remat/recording/recording_summary.h>
#include <remat/recording/replay_links.h>

#include "damage/read_mutants.h"
#include "recording/diff_programs.h"
#include "recording/file_block.h"
#include "recording/sample_recording.h"
#include "support/catch.h"

using remat::Recording;

namespace {

/// A region that reads a list and a text, and a replay that throws in another op.
Recording replayed_recording() {
  remat::test::RecordedProgram program;
  const remat::RecordedTensor x = program.tensor({4, 4}, "float32", true);
  const auto region = [&](const std::string& last) {
    const remat::RecordedTensor y = program.op("aten::sin", {x}, {program.number(0.5)});
    program.memory(y, 64);
    program.add("aten::relu_", {y}, {program.list(1), program.flag(true)}, {y});
    program.op(last, {y, x}, {program.mode("tanh")});
  };
  program.begin_region(1);
  region("aten::gelu");
  program.end_region();
  program.begin_backward();
  program.begin_replay(1);
  region("aten::elu");
  program.end_replay(true);
  return program.recording;
}

std::vector<std::string> samples() {
  const auto path = std::filesystem::temp_directory_path() / ("damaged" + std::to_string(getpid()));
  std::vector<std::string> all;
  for (const size_t parts : {1, 2, 3, 4}) {
    remat::test::write(parts == 4 ? replayed_recording()
                                  : remat::test::sample_recording(static_cast<int64_t>(parts)),
                       path.string(), parts == 4 ? 1 : parts);
    std::ifstream file(path, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::filesystem::remove(path);
  return all;
}

/// Changes the events of each block by `damage`, and gives the block a correct checksum.
template <class Damage>
std::string with_damaged_events(const std::string& file, Damage&& damage) {
  std::string changed = remat::detail::file_header();
  size_t at = remat::detail::kFileHeaderBytes;
  while (const auto block = remat::detail::first_block(std::string_view(file).substr(at))) {
    at += remat::detail::kBlockHeaderBytes + block->events.size();
    const std::string events = damage(std::string(block->events));
    changed += remat::detail::block_header({block->thread, events}) + events;
  }
  return changed;
}

struct Tally {
  size_t refused = 0;
  size_t damaged = 0;
  size_t whole = 0;
};

/// Calls every reader of a recording.
void look_at(const Recording& recording) {
  const std::vector<remat::MemoryBlock> blocks = memory_blocks(recording);
  REQUIRE(alive_by_kind(recording, blocks).size() == recording.memory.size());
  for (const size_t forward : forward_ops(recording))
    REQUIRE((forward == remat::kNoOp || forward < recording.ops.size()));
  std::ostringstream out;
  write_chrome_trace(recording, out);
  write_memory_snapshot(recording, out);
  summary_of(recording);
  static const Recording whole = remat::test::sample_recording(1);
  for (const auto& difference : replay_differences(recording))
    REQUIRE(difference.replay < recording.replays.size());
  REQUIRE_FALSE(first_difference(recording, recording));
  first_difference(whole, recording);
  first_difference(recording, whole);
  write_report(recording, out);
}

void read(const std::string& bytes, Tally& tally) {
  try {
    const Recording recording = Recording::from_bytes(bytes, "mutant");
    recording.damage.empty() ? ++tally.whole : ++tally.damaged;
    if (!recording.damage.empty()) REQUIRE(recording.damage.rfind("at byte ", 0) == 0);
    for (const auto& op : recording.ops) {
      REQUIRE(op.name < recording.strings.size());
      for (const auto& tensor : op.arguments) REQUIRE(tensor.layout < recording.layouts.size());
    }
    look_at(recording);
  } catch (const std::invalid_argument& error) {
    ++tally.refused;
    REQUIRE(std::string(error.what()).rfind("[recording] mutant: expected ", 0) == 0);
  }
}

TEST_CASE("Damaged recordings are read up to the damage", "[recording][fuzz]") {
  const std::vector<std::string> files = samples();
  const uint64_t count = 5 * remat::test::from_environment("REMAT_FUZZ_N", 2000);
  const uint64_t shard = remat::test::from_environment("REMAT_FUZZ_SHARD", 0);
  Tally outside;
  Tally inside;
  for (uint64_t seed = shard * count; seed < (shard + 1) * count; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const std::string& file = files[seed % files.size()];
    const auto damage = [&](const std::string& text) {
      return random() % 2 == 0 ? remat::test::flipped(text, random)
                               : remat::test::mutated(text, random);
    };
    read(damage(file), outside);
    read(with_damaged_events(file, damage), inside);
  }
  CHECK(outside.refused > 0);
  CHECK(outside.damaged > count / 2);
  CHECK(inside.damaged > count / 4);
  CHECK(inside.whole > 0);
}

}  // namespace
