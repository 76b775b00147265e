// SPDX-License-Identifier: BSD-3-Clause

// A recording is read as it was written.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <remat/recording/recording.h>

#include <remat/recording/recording_writer.h>
#include "recording/sample_recording.h"
#include "support/catch.h"

using remat::MarkEvent;
using remat::Recording;
using remat::RecordingWriter;
using remat::StringId;
using remat::test::same;
using remat::test::sample_recording;

namespace {

/// A path for this test alone; removes the file at its end.
class Path {
 public:
  explicit Path(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))) {}
  ~Path() { std::filesystem::remove(path_); }
  std::string str() const { return path_.string(); }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

remat::detail::ByteWriter mark(int64_t time_ns, StringId name) {
  remat::detail::ByteWriter bytes;
  bytes.add(MarkEvent{time_ns, name});
  return bytes;
}

TEST_CASE("A recording that is read back is the one that was written", "[recording]") {
  const Path path("recording_same");
  for (const int64_t seed : {int64_t{0}, int64_t{1} << 40, int64_t{-5}}) {
    const Recording sample = sample_recording(seed);
    for (const size_t parts : {1, 2, 3}) {
      remat::test::write(sample, path.str(), parts);
      const Recording read = Recording::load(path.str());
      CHECK(read.damage.empty());
      CHECK(same(read, sample));
    }
  }
}

TEST_CASE("A recording that is cut off anywhere is read up to there", "[recording]") {
  const Path path("recording_cut");
  remat::test::write(sample_recording(3), path.str(), 2);
  const std::string bytes = path.bytes();
  size_t events = 0;
  for (size_t size = 12; size <= bytes.size(); ++size) {
    const Recording read = Recording::from_bytes(bytes.substr(0, size));
    const size_t now = read.ops.size() + read.memory.size() + read.marks.size();
    REQUIRE(now >= events);
    events = now;
    if (!read.damage.empty())
      REQUIRE(read.damage.find("expected a block of events, got one that is cut off") !=
              std::string::npos);
  }
  CHECK(events == 5);
  CHECK(Recording::from_bytes(bytes).damage.empty());
  for (size_t size = 0; size < 12; ++size) {
    CHECK_THROWS_WITH(Recording::from_bytes(bytes.substr(0, size), "r.remat"),
                      "[recording] r.remat: expected a recording, got another file. Name what a "
                      "Recorder has written.");
  }
}

TEST_CASE("Files that are no recordings are refused with what to do", "[recording]") {
  CHECK_THROWS_WITH(Recording::load("/nowhere/r.remat"),
                    "[recording] /nowhere/r.remat: expected a file that can be read. Correct the "
                    "path.");
  const Path path("recording_version");
  remat::test::write(sample_recording(0), path.str());
  std::string bytes = path.bytes();
  bytes[8] = 9;
  CHECK_THROWS_WITH(Recording::from_bytes(bytes, "r.remat"),
                    "[recording] r.remat: expected version 1, got 9. Read it with the remat that "
                    "wrote it, or record again.");
  CHECK_THROWS_WITH(RecordingWriter("/nowhere/r.remat"),
                    "[recording] /nowhere/r.remat: expected a file that can be written, got 'No "
                    "such file or directory'. Name another.");
}

TEST_CASE("Threads write blocks side by side, each after what it names", "[recording]") {
  const Path path("recording_threads");
  constexpr int kThreads = 4;
  constexpr int kBlocks = 200;
  {
    RecordingWriter writer(path.str());
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&writer, thread] {
        for (int i = 0; i < kBlocks; ++i)
          writer.write_block(thread, mark(i, writer.string(std::to_string(i))).bytes());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const Recording read = Recording::load(path.str());
  CHECK(read.damage.empty());
  REQUIRE(read.marks.size() == size_t{kThreads} * kBlocks);
  CHECK(read.strings.size() == 1 + kBlocks);
  for (const auto& event : read.marks)
    CHECK(read.text(event.name) == std::to_string(event.time_ns));
}

TEST_CASE("A process that was forked writes nothing into its parent's recording", "[recording]") {
  const Path path("recording_fork");
  {
    RecordingWriter writer(path.str());
    writer.write_block(0, mark(1, writer.string("parent")).bytes());
    const pid_t child = fork();
    if (child == 0) {
      writer.write_block(0, mark(2, writer.string("child")).bytes());
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    REQUIRE(status == 0);
    writer.write_block(0, mark(3, 1).bytes());
  }
  const Recording read = Recording::load(path.str());
  CHECK(read.damage.empty());
  CHECK(read.marks.size() == 2);
}

TEST_CASE("A disk that is full ends the recording and says so", "[recording]") {
  RecordingWriter writer("/dev/full");
  writer.write_block(0, mark(1, 0).bytes());
  CHECK(writer.fault() ==
        "[recording] /dev/full: expected to write on, got 'No space left on device': what follows "
        "is left out. Free space, or name another folder.");
}

}  // namespace
