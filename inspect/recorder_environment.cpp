// SPDX-License-Identifier: BSD-3-Clause

// Starts recorders that environment variables request.
#include <remat/inspect/recorder.h>

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>

namespace remat {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

namespace detail {

bool record_from_environment() {
  // Leaked: recording ends with the process.
  static const Recorder* const recorder = []() -> const Recorder* {
    const std::string folder = environment("REMAT_RECORD");
    const bool debugs = environment("REMAT_DEBUG") == "1";
    if (folder.empty() && !debugs) return nullptr;
    const std::string path = (folder.empty() ? "." : folder) + "/remat-" + std::to_string(getpid());
    try {
      RecorderOptions options;
      options.source_lines = debugs || environment("REMAT_RECORD_LINES") == "1";
      if (debugs) options.differences_path = path + ".diff";
      return new Recorder(path + ".rec", options);
    } catch (const std::exception& error) {
      // The library is being loaded, so nobody could catch an exception.
      TORCH_WARN("[Recorder] ", path, ".rec: nothing is recorded: ", error.what());
      return nullptr;
    }
  }();
  return recorder != nullptr;
}

}  // namespace detail
}  // namespace remat
