// SPDX-License-Identifier: BSD-3-Clause

// remat-report as people and scripts call it.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "recording/sample_recording.h"
#include "recording/transformer_recording.h"
#include "support/catch.h"
#include "tools/run_command.h"

using remat::Recording;
using remat::test::Result;
using remat::test::run_command;
using remat::test::transformer_recording;
using remat::test::write;

namespace {

Result run(const std::string& arguments) {
  return run_command(std::string("'") + REMAT_REPORT_PROGRAM + "' " + arguments + " 2>&1");
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Recordings in a temporary folder.
struct Folder {
  Folder()
      : folder(std::filesystem::temp_directory_path() /
               ("remat_report" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder);
    write(transformer_recording({.steps = 1, .layers = 2}), path("step.rec"));
    write(remat::test::sample_recording(0), path("other.rec"));
  }
  ~Folder() { std::filesystem::remove_all(folder); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (folder / name).string(); }

  std::filesystem::path folder;
};

TEST_CASE("remat-report writes a page of one recording or two", "[tools][remat_report]") {
  const Folder folder;
  const Result one = run(folder.path("step.rec") + " -o " + folder.path("one.html"));
  CHECK(one.exit_code == 0);
  CHECK(one.output.empty());
  CHECK_THAT(text_of(folder.path("one.html")),
             ContainsSubstring("{\"runs\":[{\"name\":\"step.rec\""));
  const Result two = run(folder.path("step.rec") + " " + folder.path("other.rec") + " -o " +
                         folder.path("two.html"));
  CHECK(two.exit_code == 0);
  CHECK_THAT(text_of(folder.path("two.html")), ContainsSubstring("{\"name\":\"other.rec\""));
}

TEST_CASE("remat-report says what it cannot read or write", "[tools][remat_report]") {
  const Folder folder;
  const std::string step = folder.path("step.rec");
  const Result fails = run(step + " -o /nowhere/step.html");
  CHECK(fails.exit_code == 3);
  CHECK(fails.output ==
        "[recording] /nowhere/step.html: expected a path that can be written, got 'No such file "
        "or "
        "directory'. Name another.\n");
  CHECK(run("/nowhere/step.rec -o " + folder.path("a.html")).exit_code == 3);
  CHECK(run(step + " /nowhere/step.rec -o " + folder.path("a.html")).exit_code == 3);
  CHECK_FALSE(std::filesystem::exists(folder.path("a.html")));
  CHECK(run(step).exit_code == 2);
  CHECK(run("-o " + folder.path("a.html")).exit_code == 2);
  CHECK(run("--help").exit_code == 0);
  std::filesystem::resize_file(step, std::filesystem::file_size(step) - 1);
  const Result cut = run(step + " -o " + folder.path("cut.html"));
  CHECK(cut.exit_code == 0);
  CHECK_THAT(cut.output, ContainsSubstring("got one that is cut off or changed: what follows is "
                                           "left out\n"));
}

// Writes recordings for python/tests/test_report_page.py into the folder REMAT_REPORT_SAMPLES.
TEST_CASE("Recordings for tests of the page", "[.samples]") {
  const char* const folder = std::getenv("REMAT_REPORT_SAMPLES");
  REQUIRE(folder != nullptr);
  const auto put = [&](const Recording& recording, const std::string& name) {
    write(recording, std::string(folder) + "/" + name);
  };
  put(transformer_recording({.steps = 3}), "step.rec");
  put(transformer_recording({.steps = 3, .keeps_attention = false}), "recompute.rec");
  put(transformer_recording({.steps = 60}), "long.rec");
  put(transformer_recording(
          {.steps = 1, .layers = 2, .first_label = "</script><img src=x onerror=alert(1)>\u2028"}),
      "hostile.rec");
  Recording empty;
  empty.strings = {""};
  empty.layouts = {{}};
  put(empty, "empty.rec");
}

}  // namespace
