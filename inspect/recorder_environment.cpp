// SPDX-License-Identifier: BSD-3-Clause

// Starts the recorder that environment variables request, when the process begins to use remat.
#include <remat/inspect/recorder.h>

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>

#include <remat/backend/first_use.h>

// Keeps this file in programs that link remat statically; see CMakeLists.txt.
extern "C" REMAT_API const int remat_environment_noted;

namespace remat {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// The error's text without a C++ backtrace, which would hide it.
const char* text_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

/// Follows REMAT_RECORD, REMAT_RECORD_LINES and REMAT_DEBUG. The recorder is leaked, because
/// recording ends with the process.
void start_recorder() {
  const std::string folder = environment("REMAT_RECORD");
  const bool debugs = environment("REMAT_DEBUG") == "1";
  if (folder.empty() && !debugs) return;
  const std::string path = (folder.empty() ? "." : folder) + "/remat-" + std::to_string(getpid());
  try {
    RecorderOptions options;
    options.source_lines = debugs || environment("REMAT_RECORD_LINES") == "1";
    if (debugs) options.differences_path = path + ".diff";
    new Recorder(path + ".rec", options);
  } catch (const std::exception& error) {
    TORCH_WARN("[Recorder] ", path, ".rec: nothing is recorded: ", text_of(error));
  }
}

}  // namespace
}  // namespace remat

const int remat_environment_noted = (remat::detail::at_first_use(&remat::start_recorder), 1);
