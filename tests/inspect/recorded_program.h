// SPDX-License-Identifier: BSD-3-Clause

// Records a piece of a program.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include <remat/inspect/recorder.h>
#include <remat/recording/recording.h>

#include "support/catch.h"

namespace remat::test {

/// Returns the recording of `run(recorder)`.
template <class Run>
Recording recording_of(Run&& run, const RecorderOptions& options = {}) {
  const auto path =
      std::filesystem::temp_directory_path() / ("recorder" + std::to_string(getpid()));
  {
    Recorder recorder(path.string(), options);
    run(recorder);
    recorder.stop();
  }
  Recording recording = Recording::load(path.string());
  std::filesystem::remove(path);
  REQUIRE(recording.damage.empty());
  return recording;
}

}  // namespace remat::test
